"""What commands print: tables for people, JSON for programs, lines on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

#: Wide enough that a file or a pipe gets whole lines, which grep looks for.
_WIDE = 4000


def console() -> Console:
    """Return standard output for tables. A terminal wraps at its width, a pipe or file does not."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def table(left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = ()) -> Table:
    """Return an empty table with columns of text, of numbers, and of text again."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for names, justify in ((left, "left"), (right, "right"), (last, "left")):
        for name in names:
            made.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return made


def print_json(document: Any) -> None:
    """Print a document on standard output."""
    print(json.dumps(document, indent=2))


def say(message: object) -> None:
    """Print a message on standard error, as one line."""
    print(f"tritune: {' '.join(str(message).split())}", file=sys.stderr)
