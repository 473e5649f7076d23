"""The measured times of a kernel on a device, as a table: problems, configs, times."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tritune.policy.nearest import Fields
from tritune.space import Config

if TYPE_CHECKING:
    from tritune.store import Store
    from tritune.store.records import Trial

#: Whether a config may be used for a problem.
Valid = Callable[[Config, Fields], bool]
Halves = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """One problem and the time of each config; infinite: it failed."""

    problem: Fields
    times_ms: Mapping[Config, float]
    #: The kernel's default config for the problem, if it was among those tried.
    default: Config | None = None
    #: The same times from one half of the samples and from the other.
    halves_ms: Mapping[Config, Halves] = field(default_factory=dict)

    def cost(self, config: Config) -> float | None:
        """Return a config's time beyond the best, as a share of the best; None if nobody tried it.

        The best is found with one half of the samples and timed with the other: the best of many
        noisy times is too good to be true, and nothing could come near it.
        """
        if config not in self.times_ms:
            return None
        best = min(self.times_ms, key=lambda c: (self.halves(c)[0], c.key))
        return self.halves(config)[1] / self.halves(best)[1] - 1.0

    def slower_than_default(self, config: Config | None) -> float | None:
        """Return the time beyond the default's, as a share of it; None if nobody tried both."""
        default = self.default
        if config not in self.times_ms or default not in self.times_ms:
            return None
        assert config is not None and default is not None
        return self.halves(config)[1] / self.halves(default)[1] - 1.0

    def halves(self, config: Config) -> Halves:
        """Return a config's time from one half of its samples and from the other."""
        ms = self.times_ms[config]
        return self.halves_ms.get(config, (ms, ms))

    def fastest(self, count: int) -> list[Config]:
        """Return the best configs, the best first."""
        ranked = sorted((ms, c.key, c) for c, ms in self.times_ms.items() if ms < math.inf)
        return [config for _, _, config in ranked[:count]]


def read(store: Store, kernel: str, identity: str, device: str) -> list[Measured]:
    """Return every measured problem of a kernel, in the order of their text."""
    by_problem: dict[str, list[Trial]] = {}
    for trial in store.all_trials(kernel, identity, device):
        by_problem.setdefault(trial.task.problem, []).append(trial)
    rows = [
        Measured(
            json.loads(problem),
            times_of(trials),
            next((trial.config for trial in trials if trial.default), None),
            _by_config(trials, _halves, (math.inf, math.inf)),
        )
        for problem, trials in sorted(by_problem.items())
    ]
    return [row for row in rows if any(ms < math.inf for ms in row.times_ms.values())]


def times_of(trials: Sequence[Trial]) -> dict[Config, float]:
    """Return each config's median time: of the final race if it took part, else of the search."""
    return _by_config(trials, statistics.median, math.inf)


def _by_config(
    trials: Sequence[Trial], summary: Callable[[list[float]], T], failed: T
) -> dict[Config, T]:
    found: dict[Config, T] = {}
    by_key: dict[str, T] = {}
    for trial in trials:
        times = _times_of(trial)
        if times or trial.failure is not None:
            value = failed if trial.failure is not None else summary(times)
            found[trial.config] = by_key[trial.config.key] = value
    for trial in trials:
        if trial.duplicate_of in by_key:
            found[trial.config] = by_key[trial.duplicate_of]
    return found


def _times_of(trial: Trial) -> list[float]:
    for stage in ("final", "search"):
        times = [ms for s in trial.samples if s.stage == stage for ms in s.times_ms]
        if times:
            return times
    return []


def _halves(times: list[float]) -> Halves:
    return statistics.median(times[::2]), statistics.median(times[1::2] or times)


def digest(rows: Sequence[Measured]) -> str:
    """Return a digest of the data, to tell whether a policy was learned from it."""
    text = json.dumps(
        [
            [dict(row.problem), sorted((c.key, repr(ms)) for c, ms in row.times_ms.items())]
            for row in rows
        ],
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
