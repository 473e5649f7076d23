"""The output of `tritune compile`: progress with the time left, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from tritune.cli import _terminal

if TYPE_CHECKING:
    from tritune.screening.screen import Screened, ScreeningProgress
    from tritune.screening.task import ScreeningTask

_COUNTS = ("candidates", "compiled", "impossible", "failed", "spilling", "duplicate", "left")


class Display(_terminal.Display):
    """Show the progress of each screening."""

    def __init__(self, tasks: int, quiet: bool) -> None:
        note = TextColumn("{task.fields[note]}")
        super().__init__(tasks, quiet, MofNCompleteColumn(), TimeRemainingColumn(), note)
        self.bar = self.bars.add_task("", total=None, note="")

    def begin(self, task: ScreeningTask) -> None:
        words = f"{task.target} {task.workload.name} {_terminal.describe(task.problem)}"
        self.bars.reset(self.bar, description=escape(words[:60]), note="")

    def update(self, progress: ScreeningProgress) -> None:
        dropped = ", ".join(f"{n} {reason}" for reason, n in sorted(progress.rejected.items()))
        self.bars.update(self.bar, completed=progress.done, total=progress.total, note=dropped)

    def end(self, screened: Screened) -> None:
        task, left = screened.task, len(screened.left)
        self.finish(
            f"{task.target} {task.workload.name}: {left} of {screened.candidates} left, "
            f"{screened.seconds:.1f} s"
        )


def show(found: Sequence[Screened]) -> None:
    """Print the table, with a row for each screening, and the best estimate of each."""
    console = _terminal.console()
    table = _terminal.table(("target", "problem"), (*_COUNTS, "seconds"))
    for each in found:
        table.add_row(*_cells(each))
    console.print(table)
    for each in found:
        best = each.left[0] if each.left else None
        if best is not None and best.estimate_ms is not None:
            console.print(
                f"{each.task.target}: most promising {escape(str(best.config))} "
                f"(estimated {best.estimate_ms:.3f} ms)"
            )


def show_pack(path: Path, configs: int) -> None:
    """Print where the pack is and the command that uses it."""
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
    words = [str(each.task.target), escape(_terminal.describe(each.task.problem))]
    return [*words, *map(str, counts), f"{each.seconds:.1f}"]
