"""What `tritune compile` shows: progress with the time left, and the table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tritune.cli._tune_display import described

if TYPE_CHECKING:
    from tritune.screening.screen import Screened, Watched
    from tritune.screening.subject import Subject


class Display:
    """Progress on standard error: a bar in a terminal, a line for each target elsewhere."""

    def __init__(self, subjects: int, quiet: bool) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal and not quiet
        self.quiet, self.subjects, self.number = quiet, subjects, 0
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), console=self.console, transient=True,
        )  # fmt: skip
        self.bar = self.bars.add_task("", total=None, note="")
        self.began, self.known = 0.0, 0

    def __enter__(self) -> Display:
        if self.live:
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.bars.stop()

    def begin(self, subject: Subject) -> None:
        self.number += 1
        self.began, self.known = time.monotonic(), -1
        words = f"{subject.target} {subject.workload.name} {described(subject.problem)}"
        self.bars.update(self.bar, description=escape(words[:60]), completed=0, total=None, note="")

    def update(self, watched: Watched) -> None:
        if self.known < 0:
            self.known = watched.done - 1  # an earlier run's
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(watched.rejected.items()))
        note = f"{self._time_left(watched)}  {dropped}"
        self.bars.update(self.bar, completed=watched.done, total=watched.total, note=note)

    def end(self, screened: Screened) -> None:
        if self.quiet or self.live:
            return
        subject = screened.subject
        self.console.print(
            f"[{self.number}/{self.subjects}] {subject.target} {subject.workload.name}: "
            f"{len(screened.left)} of {screened.candidates} left, {screened.seconds:.1f} s",
            soft_wrap=True,
            markup=False,
        )

    def _time_left(self, watched: Watched) -> str:
        done = watched.done - self.known
        left = (watched.total - watched.done) * (time.monotonic() - self.began) / max(done, 1)
        return f"{left / 60:.0f} min left" if left > 120 else f"{left:.0f} s left"


def table(found: Sequence[Screened]) -> None:
    """Candidates, compiled, impossible, spilling, duplicate, left; a row for each screening."""
    # A pipe or a file gets whole lines; a terminal wraps at its width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("target", "problem"):
        shown.add_column(name, overflow="fold")
    columns = "candidates compiled impossible failed spilling duplicate left seconds".split()
    for name in columns:
        shown.add_column(name, justify="right")
    for each in found:
        shown.add_row(*_cells(each))
    console.print(shown)
    promising = [each for each in found if each.left]
    for each in promising:
        best = each.left[0]
        if best.estimate_ms is not None:
            console.print(
                f"{each.subject.target}: most promising {escape(str(best.config))} "
                f"(estimated {best.estimate_ms:.3f} ms)"
            )


def packed(path: Path, configs: int) -> None:
    """Where the pack is and what to do with it."""
    size = path.stat().st_size / 2**20
    print(f"{configs} configs in {path} ({size:.1f} MB): tritune tune --pack {path}")


def _cells(each: Screened) -> list[str]:
    rejected = each.rejected
    counts = (
        each.candidates,
        each.compiled,
        rejected["out_of_resources"],
        rejected["compile_error"] + rejected["timeout"],
        rejected["spills"],
        rejected["duplicate"],
        len(each.left),
    )
    words = [str(each.subject.target), escape(described(each.subject.problem))]
    return [*words, *map(str, counts), f"{each.seconds:.1f}"]
