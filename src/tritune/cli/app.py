"""The subcommands and `--version`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

from tritune._version import __version__
from tritune.cli import bench, db, doctor, new, replay, run, tune
from tritune.cli import compile as compile_
from tritune.cli._interrupted import Interrupted

# Recent releases of typer carry their own copy of click. The base of all usage errors is reached
# through a name that every release exports.
UsageError: type[Exception] = typer.BadParameter.__mro__[2]


class _Group(typer.core.TyperGroup):
    """A group that keeps an interrupt apart from the exit status that typer makes of it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None


app = typer.Typer(
    name="tritune",
    cls=_Group,
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
