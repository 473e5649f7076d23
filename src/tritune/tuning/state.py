"""The state of a search: the time of each config, the best one, the trials since it improved."""

from __future__ import annotations

import random
from collections import Counter

from tritune.space import Config
from tritune.store.records import Trial
from tritune.tuning.job import Job, Settings
from tritune.tuning.measure.statistics import median
from tritune.tuning.search import STRATEGIES

#: Less than this is no improvement that is worth going on for.
IMPROVEMENT = 0.99


class SearchState:
    """The outcomes of a task's trials, as the strategy and the tuner need them."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self._job, self._effort = job, settings.effort
        strategy = STRATEGIES[settings.strategy]
        self.strategy = strategy(job.points, random.Random(settings.seed), job.prior)
        #: The time of each config, corrected for drift against the best one; None: it failed.
        self.results: dict[Config, float | None] = {}
        #: The first config with each binary.
        self.binaries: dict[str, Config] = {}
        self.failures: Counter[str] = Counter()
        self.best: Config | None = None
        self._since_improvement = 0

    @property
    def best_ms(self) -> float | None:
        return None if self.best is None else self.results[self.best]

    def add(self, trial: Trial, ms: float | None = None) -> None:
        """Take in an outcome and tell the strategy; `ms` is the time if it was corrected."""
        if trial.failure:
            self.failures[trial.failure] += 1
        elif trial.duplicate_of is not None:
            twins = (c for c in self.results if c.key == trial.duplicate_of)
            ms = next((self.results[c] for c in twins), None)
        elif ms is None:
            ms = median([s.times_ms for s in trial.samples if s.stage in ("search", "final")])
        if ms is not None and trial.binary and trial.duplicate_of is None:
            self.binaries[trial.binary] = trial.config
        self.results[trial.config] = ms
        self.strategy.tell(trial.config, ms)
        best_ms = self.best_ms
        self._since_improvement += 1
        if ms is not None and (best_ms is None or ms < best_ms):
            if best_ms is None or ms < IMPROVEMENT * best_ms:
                self._since_improvement = 0
            self.best = trial.config

    def out_of_patience(self) -> bool:
        """Return whether more trials would hardly find anything better."""
        patience = self._effort.patience_near(self._job.limit_ms, self.best_ms)
        return self._since_improvement >= patience

    def samples_per_round(self) -> int:
        """Return how many samples a turn takes: a long call tells as much as several short ones."""
        best_ms = 10.0 if self.best_ms is None else self.best_ms
        return 3 if best_ms < 5.0 else 2 if best_ms < 50.0 else 1

    def finalists(self, most_ms: float) -> list[Config]:
        """Return the default and the best configs: as many as one sample of each takes no more than
        `most_ms` for, and one besides the default at least.
        """
        ranked = sorted((ms, c.key, c) for c, ms in self.results.items() if ms is not None)
        default = self._job.default
        most_ms -= self.results.get(default) or 0.0
        found: list[Config] = []
        for ms, _, config in ranked[: self._effort.finalists]:
            if config != default:
                most_ms -= ms
                if most_ms < 0 and found:
                    break
                found.append(config)
        return found + [default] * (self.results.get(default) is not None)
