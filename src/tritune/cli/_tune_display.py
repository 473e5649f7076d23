"""The output of `tritune tune`: progress while it works, and the table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn

from tritune.cli import _terminal

if TYPE_CHECKING:
    from tritune.cli.tune import Result
    from tritune.kernels.kernel import Problem
    from tritune.tuning import job
    from tritune.tuning.autotune.recorded_calls import RecordedCall
    from tritune.workloads.tuning import Tuned
    from tritune.workloads.workload import Workload

NOTHING = "nothing worked"
BUSY = "machine busy"


class Display(_terminal.Display):
    """Show the progress of all problems, and of the one that is tuned."""

    def __init__(self, problems: int, budget_seconds: float, quiet: bool) -> None:
        super().__init__(problems, quiet, TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        self.started, self.budget = time.monotonic(), budget_seconds
        self.label = ""
        self.holders: set[int | None] = set()
        self.overall = self.bars.add_task("problems", total=problems, note="")
        self.current = self.bars.add_task("", total=1, note="", visible=False)

    def begin(self, workload: Workload | RecordedCall, problem: Problem) -> None:
        self.label = f"{workload.name} {_terminal.describe(problem)}"
        self.bars.update(
            self.current, description=escape(self.label[:60]), completed=0, total=None, note="",
            visible=True,
        )  # fmt: skip

    def update(self, progress: job.Progress) -> None:
        """Show the state after a batch; the tuner calls this."""
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
        if progress.config is not None:
            self.bars.below = str(progress.config)

    def _waiting(self, holder: int | None) -> str:
        """Say, once per process, for whom this one waits."""
        note = _terminal.describe_waiting(holder)
        if not self.quiet and holder not in self.holders:
            self.holders.add(holder)
            self.say(f"{self.label}: {note}")
        return note

    def end(self, outcome: job.Outcome) -> None:
        winner, what = outcome.winner, _why_none(outcome)
        if winner is not None and winner.ms is not None and not outcome.busy:
            what = _ms(winner.ms)
        known = "known" if outcome.known else f"{outcome.new_trials} trials"
        self.finish(f"{self.label}: {what}, {known}, {outcome.seconds:.1f} s")
        self.bars.update(self.overall, completed=self.done)

    def _time_left(self, progress: job.Progress) -> str:
        """Estimate the time left from the pace so far, and the budget."""
        elapsed = time.monotonic() - self.started
        share = self.done + progress.trials / max(progress.most_trials, 1)
        if share < 0.05:
            return ""
        left = min(elapsed * (self.items - share) / share, self.budget - elapsed)
        return f"{max(left, 0):.0f} s left at most"


def show(result: Result) -> None:
    """Print the table default / tuned / vendor, and what holds for other problems."""
    console = _terminal.console()
    numbers = ("default", "tuned", "speed-up", "vendor", "against it", "trials", "failed")
    table = _terminal.table(("op", "problem"), numbers, ("config",))
    for row in result.rows:
        table.add_row(*_cells(row))
    console.print(table)
    if result.learned:
        console.print("for problems that were not tuned:")
    for line in result.learned:
        console.print(f"  {escape(line)}")
    for line in _summary(result):
        console.print(line)


def interruption(result: Result) -> str:
    """Say what a run had done when the user interrupted it."""
    new, location = result.new_trials, result.location
    stored = f"{new} new trials are stored in {location}" if new else "nothing was measured yet"
    done = f"interrupted after {len(result.rows)} of {result.asked} problems"
    return f"{done}, {stored}: run it again to go on"


def _cells(row: Tuned) -> list[str]:
    outcome = row.outcome
    winner = outcome.winner
    failed = " ".join(f"{n} {reason}" for reason, n in sorted(outcome.failures.items()))
    first = [row.workload.name, escape(_terminal.describe(row.problem))]
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


def _why_none(outcome: job.Outcome) -> str:
    """Say why there is no winner to show."""
    if outcome.busy:
        return BUSY
    return NOTHING if outcome.trials else "no time left"


def _summary(result: Result) -> Iterator[str]:
    outcomes = [row.outcome for row in result.rows]
    won = [(each, each.winner) for each in outcomes if each.winner is not None]
    gains = [winner.speedup for _, winner in won if winner.speedup]
    ahead = [each.vendor_ms / best.ms for each, best in won if best.ms and each.vendor_ms]
    means = [
        f"{_geomean(ratios):.2f}x {what}"
        for ratios, what in ((gains, "the default config"), (ahead, "the vendor's library"))
        if ratios
    ]
    if means:
        yield f"geometric mean: {', '.join(means)}"
    if outcomes and all(each.known for each in outcomes):
        yield f"everything was known already: nothing was measured ({result.seconds:.1f} s)"
    else:
        place = escape(result.location)
        yield f"{result.new_trials} new trials in {result.seconds:.1f} s, stored in {place}"
    busy = sum(each.busy for each in outcomes)
    if busy:
        yield (
            f"[yellow]this machine is busy[/]: other processes disturbed what was measured for "
            f"{busy} of {result.asked} problems; what is not decided keeps its default. Run it "
            "again when the machine is quiet"
        )
    late = sum(each.trials == 0 and not each.busy for each in outcomes)
    if late:
        yield (
            f"[yellow]{late} of {result.asked} problems were not begun[/]: run it again to go on, "
            "or with a larger --budget"
        )


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _ms(ms: float) -> str:
    return f"{ms * 1000:.1f} us" if ms < 0.1 else f"{ms:.3f} ms" if ms < 10 else f"{ms:.1f} ms"
