"""The way into the command line: subcommands, `--version`, and errors as one line each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tritune._version import __version__
from tritune.cli import bench, db, doctor, new, replay, run, tune
from tritune.cli import compile as compile_
from tritune.errors import TrituneError

# Recent releases of typer carry their own copy of click. The base of all usage errors is reached
# through a name that every release exports.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="tritune",
    help="Write an LLM kernel once in Triton and run it fast on any device.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tritune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command("doctor")(doctor.command)
app.command("tune")(tune.command)
app.command("bench")(bench.command)
app.command("compile")(compile_.command)
app.command("replay", cls=replay.Command)(replay.command)
app.command("new")(new.command)
app.command("run", context_settings=run.CONTEXT)(run.command)
app.add_typer(db.app, name="db")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        status = app(
            list(sys.argv[1:] if arguments is None else arguments),
            prog_name="tritune",
            standalone_mode=False,
        )
    except _ClickException as error:
        message = error.format_message()  # type: ignore[attr-defined]
        print(f"tritune: {_one_line(message)} (see tritune --help)", file=sys.stderr)
        return int(getattr(error, "exit_code", 2))
    except TrituneError as error:
        print(f"tritune: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except (typer.Abort, KeyboardInterrupt):
        print("tritune: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would complain again at exit.
        sys.stderr.close()
        return 141
    return status if isinstance(status, int) else 0


def _one_line(message: str) -> str:
    return " ".join(message.split())


if __name__ == "__main__":
    sys.exit(main())
