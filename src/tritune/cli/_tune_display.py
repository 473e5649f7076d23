"""What `tritune tune` shows: a live display while it works, and the table at the end."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from tritune.kernels.kernel import Problem
    from tritune.tuning import tuner
    from tritune.tuning.autotune.recorded_calls import RecordedCall
    from tritune.workloads.tuning import Tuned
    from tritune.workloads.workload import Workload


NOTHING = "nothing worked"
BUSY = "machine busy"


class Display:
    """Progress on standard error: bars in a terminal, a line per problem elsewhere."""

    def __init__(self, problems: int, budget: float | None, quiet: bool) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal and not quiet
        self.quiet, self.problems, self.done = quiet, problems, 0
        self.started, self.budget = time.monotonic(), budget
        self.failures: Counter[str] = Counter()
        self.label = ""
        self.holders: set[int | None] = set()
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(), console=self.console,
        )  # fmt: skip
        self.overall = self.bars.add_task("problems", total=problems, note="")
        self.current = self.bars.add_task("", total=1, note="", visible=False)
        self.screen = Live(self.bars, console=self.console, transient=True)

    def __enter__(self) -> Display:
        if self.live:
            self.screen.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.screen.stop()

    def begin(self, workload: Workload | RecordedCall, problem: Problem) -> None:
        self.label = f"{workload.name} {described(problem)}"
        self.bars.update(
            self.current, description=escape(self.label[:60]), completed=0, total=None, note="",
            visible=True,
        )  # fmt: skip

    def update(self, progress: tuner.Progress) -> None:
        """Called by the tuner after every batch."""
        best = "" if progress.best_ms is None else f"best {_ms(progress.best_ms)}"
        if progress.best_ms and progress.default_ms:
            best += f" ({progress.default_ms / progress.best_ms:.2f}x the default)"
        failed = ", ".join(f"{n} {reason}" for reason, n in sorted(progress.failures.items()))
        note = f"{progress.trials}/{progress.most_trials} configs  {best}  {failed}"
        if progress.stage == "final":
            note += "  shoot-out"
        if progress.stage == "waiting":
            note = self._waiting(progress.holder)
        self.bars.update(
            self.current, completed=progress.trials, total=progress.most_trials, note=note
        )
        self.bars.update(self.overall, note=self._time_left(progress))
        if self.live and progress.config is not None:
            line = f"[dim]{escape(str(progress.config))}[/]"
            self.screen.update(Group(self.bars, line))

    def _waiting(self, holder: int | None) -> str:
        """Say, once per process, for whom this one waits."""
        who = "another process" if holder is None else f"process {holder}"
        note = f"waits for {who}, which measures on this device"
        if not self.quiet and holder not in self.holders:
            self.holders.add(holder)
            self.console.print(f"{self.label}: {note}", soft_wrap=True, markup=False)
        return note

    def end(self, outcome: tuner.Outcome) -> None:
        self.done += 1
        self.bars.update(self.overall, completed=self.done)
        if self.quiet or self.live:
            return
        winner = outcome.winner
        what = _why_none(outcome)
        if winner is not None and winner.ms is not None and not outcome.busy:
            what = _ms(winner.ms)
        known = "known" if outcome.known else f"{outcome.new_trials} trials"
        self.console.print(
            f"[{self.done}/{self.problems}] {self.label}: {what}, {known}, {outcome.seconds:.1f} s",
            soft_wrap=True,
            markup=False,
        )

    def _time_left(self, progress: tuner.Progress) -> str:
        """From the budget if there is one, else from the pace so far."""
        elapsed = time.monotonic() - self.started
        share = self.done + progress.trials / max(progress.most_trials, 1)
        if share < 0.05:
            return ""
        left = elapsed * (self.problems - share) / share
        if self.budget is not None:
            left = min(left, self.budget - elapsed)
        return f"{max(left, 0):.0f} s left at most"


def described(problem: Problem) -> str:
    """The facts of a problem that say something: what is off or absent is left out."""
    words = []
    # Not `fields()`, which may hold what follows from the others.
    for name, value in vars(problem).items():
        if value is True:
            words.append(name)
        elif value not in (False, None, 0, "none"):
            words.append(f"{name}={value}")
    return " ".join(words)


def table(
    rows: Sequence[Tuned],
    location: str,
    seconds: float,
    asked: int,
    learned: Sequence[str],
    new: int,
) -> None:
    """The table default / tuned / vendor, what was learned for other problems, what was stored."""
    # A pipe or a file gets whole lines; a terminal wraps at its width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 240)
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("op", "problem"):
        shown.add_column(name, overflow="fold")
    for name in ("default", "tuned", "speed-up", "vendor", "against it", "trials", "failed"):
        shown.add_column(name, justify="right")
    shown.add_column("config", overflow="fold")
    for row in rows:
        shown.add_row(*_cells(row))
    console.print(shown)
    if learned:
        console.print("for problems that were not tuned:")
    for line in learned:
        console.print(f"  {escape(line)}", soft_wrap=True)
    _summary(console, rows, location, seconds, asked, new)


def interruption(done: int, asked: int, new: int, location: str) -> str:
    """What is said last when the user has interrupted."""
    stored = f"{new} new trials are stored in {location}" if new else "nothing was measured yet"
    return f"interrupted after {done} of {asked} problems, {stored}: run it again to go on"


def _cells(row: Tuned) -> list[str]:
    outcome = row.outcome
    winner = outcome.winner
    failed = " ".join(f"{n} {reason}" for reason, n in sorted(outcome.failures.items()))
    first = [row.workload.name, escape(described(row.problem))]
    last = [str(outcome.trials), failed or "0"]
    if winner is None or winner.ms is None or outcome.busy:
        why = _why_none(outcome)
        colour = "red" if why == NOTHING else "yellow"
        return [*first, "-", f"[{colour}]{why}[/]", "-", "-", "-", *last, ""]
    gain = winner.speedup
    against = outcome.vendor_ms / winner.ms if outcome.vendor_ms else None
    return [
        *first,
        _ms(winner.default_ms) if winner.default_ms else "-",
        _ms(winner.ms),
        f"{gain:.2f}x" if gain else "-",
        f"{_ms(outcome.vendor_ms)} {outcome.vendor}" if outcome.vendor_ms else "-",
        f"{against:.2f}x" if against else "-",
        *last,
        escape(str(winner.config)),
    ]


def _why_none(outcome: tuner.Outcome) -> str:
    """Why there is no winner to show."""
    if outcome.busy:
        return BUSY
    return NOTHING if outcome.trials else "no time left"


def _summary(
    console: Console,
    rows: Sequence[Tuned],
    location: str,
    seconds: float,
    asked: int,
    new: int,
) -> None:
    won = [row.outcome.winner for row in rows if row.outcome.winner is not None]
    gains = [winner.speedup for winner in won if winner.speedup]
    ahead = [
        row.outcome.vendor_ms / row.outcome.winner.ms
        for row in rows
        if row.outcome.winner and row.outcome.winner.ms and row.outcome.vendor_ms
    ]
    words = []
    if gains:
        words.append(f"{_geomean(gains):.2f}x the default config")
    if ahead:
        words.append(f"{_geomean(ahead):.2f}x the vendor's library")
    if words:
        console.print(f"geometric mean: {', '.join(words)}")
    if rows and all(row.outcome.known for row in rows):
        console.print(f"everything was known already: nothing was measured ({seconds:.1f} s)")
    else:
        console.print(f"{new} new trials in {seconds:.1f} s, stored in {escape(location)}")
    busy = sum(row.outcome.busy for row in rows)
    if busy:
        console.print(
            f"[yellow]this machine is busy[/]: other processes disturbed what was measured for "
            f"{busy} of {asked} problems; what is not decided keeps its default. Run it again when "
            "the machine is quiet"
        )
    late = sum(row.outcome.trials == 0 and not row.outcome.busy for row in rows)
    if late:
        console.print(
            f"[yellow]{late} of {asked} problems were not begun[/]: run it again to go on, "
            "or with a larger --budget"
        )


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _ms(ms: float) -> str:
    return f"{ms * 1000:.1f} us" if ms < 0.1 else f"{ms:.3f} ms" if ms < 10 else f"{ms:.1f} ms"
