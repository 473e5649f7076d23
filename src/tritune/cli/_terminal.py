"""Printing: tables for people, JSON for programs, progress and messages on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table

from tritune.cli._interrupted import STATUS

if TYPE_CHECKING:
    from tritune.kernels.kernel import Problem

D = TypeVar("D", bound="Display")

#: Columns of a file or a pipe: so many that it gets whole lines, which grep looks for.
_WIDE = 4000


def console() -> Console:
    """Return standard output for tables. A terminal wraps at its width, a pipe or file does not."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(width=width, soft_wrap=True, highlight=False)


def table(left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = ()) -> Table:
    """Return an empty table with columns of text, of numbers, and of text again."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in (*left, *right, *last):
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def print_json(document: Any) -> None:
    """Print a document on standard output."""
    print(json.dumps(document, indent=2))


def warn(message: object) -> None:
    """Print a message on standard error, as one line."""
    print(f"tritune: {' '.join(str(message).split())}", file=sys.stderr)


def exit_interrupted(message: str, as_json: bool) -> NoReturn:
    """Say what an interrupted command has done, and end with the exit status of an interrupt."""
    print(message, file=sys.stderr if as_json else sys.stdout)
    raise typer.Exit(STATUS)


def describe(problem: Problem) -> str:
    """Describe a problem by its fields, without those that are off or absent."""
    words = []
    # Not `fields()`, which may hold what follows from the others.
    for name, value in vars(problem).items():
        if value is True:
            words.append(name)
        elif value not in (False, None, 0, "none"):
            words.append(f"{name}={value}")
    return " ".join(words)


def describe_waiting(holder: int | None) -> str:
    """Say for which process this one waits before it measures."""
    who = "another process" if holder is None else f"process {holder}"
    return f"waits for {who}, which measures on this device"


class Bars(Progress):
    """Progress bars with a line below them."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield f"[dim]{escape(self.below)}[/]"


class Display:
    """Show progress on standard error: bars in a terminal, a line per finished item elsewhere."""

    def __init__(self, items: int, quiet: bool, *columns: ProgressColumn) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.quiet, self.items, self.done = quiet, items, 0
        self.lines = not quiet and not self.console.is_terminal
        self.bars = Bars(
            TextColumn("{task.description}"), BarColumn(), *columns, console=self.console,
            transient=True, disable=quiet or self.lines,
        )  # fmt: skip

    def __enter__(self: D) -> D:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        self.console.print(text, soft_wrap=True, markup=False)

    def finish(self, text: str) -> None:
        """Count an item; print a line for it where there are no bars."""
        self.done += 1
        if self.lines:
            self.say(f"[{self.done}/{self.items}] {text}")
