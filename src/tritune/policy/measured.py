"""What was measured of a kernel on a device, as a table: problems, configs, times."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritune.policy.features import Fields
from tritune.space import Config

if TYPE_CHECKING:
    from tritune.store import Store
    from tritune.store.records import Trial

#: Whether a config may be used for a problem.
Valid = Callable[[Config, Fields], bool]


@dataclass(frozen=True)
class Measured:
    """One problem and what each config took for it; infinite: it failed."""

    problem: Fields
    times_ms: Mapping[Config, float]
    #: The kernel's default config for the problem, if it was among those tried.
    default: Config | None = None

    @property
    def best_ms(self) -> float:
        return min(self.times_ms.values())

    def slowdown(self, config: Config) -> float | None:
        """How many times the best time a config takes; None if nobody has tried it."""
        ms = self.times_ms.get(config)
        return None if ms is None else ms / self.best_ms

    def fastest(self, count: int) -> list[Config]:
        """The best configs, the best first."""
        ranked = sorted((ms, c.key, c) for c, ms in self.times_ms.items() if ms < math.inf)
        return [config for _, _, config in ranked[:count]]


def read(store: Store, kernel: str, identity: str, device: str) -> list[Measured]:
    """Every problem of a kernel that something was measured for, in the order of their text."""
    by_problem: dict[str, list[Trial]] = {}
    for trial in store.all_trials(kernel, identity, device):
        by_problem.setdefault(trial.task.problem, []).append(trial)
    rows = [
        Measured(
            json.loads(problem),
            times_of(trials),
            next((trial.config for trial in trials if trial.default), None),
        )
        for problem, trials in sorted(by_problem.items())
    ]
    return [row for row in rows if any(ms < math.inf for ms in row.times_ms.values())]


def times_of(trials: Sequence[Trial]) -> dict[Config, float]:
    """Each config's median time: that of the final race if it took part, else of the search."""
    times: dict[Config, float] = {}
    by_key: dict[str, float] = {}
    for trial in trials:
        ms = _time_of(trial)
        if ms is not None:
            times[trial.config] = by_key[trial.config.key] = ms
    for trial in trials:
        if trial.duplicate_of in by_key:
            times[trial.config] = by_key[trial.duplicate_of]
    return times


def _time_of(trial: Trial) -> float | None:
    if trial.failure is not None:
        return math.inf
    for stage in ("final", "search"):
        times = [ms for s in trial.samples if s.stage == stage for ms in s.times_ms]
        if times:
            return statistics.median(times)
    return None


def digest(rows: Sequence[Measured]) -> str:
    """A digest of the data, to tell whether something was learned from these or from others."""
    text = json.dumps(
        [
            [dict(row.problem), sorted((c.key, repr(ms)) for c, ms in row.times_ms.items())]
            for row in rows
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
