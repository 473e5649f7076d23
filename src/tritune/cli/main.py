"""The entry point of the command line; it prints each error as one line.

The commands are imported in `main`, so that an interrupt during the import is no traceback either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tritune.cli._interrupted import STATUS, Interrupted, ignore_interrupts
from tritune.errors import TrituneError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        result = _run(list(sys.argv[1:] if arguments is None else arguments))
    except (Interrupted, KeyboardInterrupt):
        ignore_interrupts()
        return _refuse("interrupted", STATUS)
    from tritune.cli._program import NoProgramError, Program

    if isinstance(result, Program):
        # Not above: what a program raises is not ours to catch.
        try:
            result.run()
        except NoProgramError as error:
            return _refuse(str(error))
        return 0
    return result if isinstance(result, int) else 0


def _run(arguments: list[str]) -> object:
    """Run a command and return its result; print why it fails, and return an exit status."""
    from tritune.cli.app import UsageError, app

    try:
        return app(arguments, prog_name="tritune", standalone_mode=False)
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        return _refuse(f"{message} (see tritune --help)", int(getattr(error, "exit_code", 2)))
    except TrituneError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would complain again at exit.
        sys.stderr.close()
        return 141


def _refuse(message: str, status: int = 2) -> int:
    print(f"tritune: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
