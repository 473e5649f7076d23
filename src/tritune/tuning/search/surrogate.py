"""Bayesian optimisation: Gaussian processes as surrogates for times and failures."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from tritune.space import Config, Points
from tritune.tuning.search.candidates import Candidates
from tritune.tuning.search.encoding import Array
from tritune.tuning.search.gaussian import GaussianProcess
from tritune.tuning.search.strategy import Prior, Strategy
from tritune.tuning.search.transfer import levels, standardised

#: Configs that are spread over the space before the model is asked: without priors, and with.
SPREAD, SPREAD_WARM = 8, 6

#: A config of the spread is the farthest from all others among so many by chance.
CHOICE = 50

#: Up to so many results, and up to this share of the space, only what is better by a tenth counts
#: as an improvement, afterwards ever less is enough: in a large space, refining what is nearly the
#: best can wait until the good regions are known.
COARSE, COARSE_SHARE, MARGIN = 40, 0.01, 0.1

#: The model is fitted anew when there is this much more to learn from.
REFIT = 1.15

#: The model learns from so many results at most: half of them the best, half by chance.
RESULTS = 300

#: However sure the model is whether a config works, it may be wrong: so much, and never less.
DOUBT = 0.1
LEAST_CHANCE = 1e-6


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


class Surrogate(Strategy):
    """Tries the config from which most improvement is expected.

    One Gaussian process learns the logarithm of the time, a failure being as bad as the worst, and
    another which configs fail. What improvement the one expects counts as much as the other
    believes that the config works. Configs that were asked for but not told yet are taken to be as
    the model expects, so that a batch spreads.
    """

    name = "surrogate"

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior] = ()) -> None:
        super().__init__(points, rng, prior)
        self._candidates: Candidates | None = None
        self._blind = SPREAD
        self._fitted_to = 0
        #: What the model learns from, and how many results there were when it was chosen.
        self._learned: list[Config] = []
        self._heard = 0
        self._best: Config | None = None

    def ask(self, count: int) -> list[Config]:
        # The matrices are small, and other cores have better things to do: a second thread costs
        # more than it gives, many times more where the cores are busy.
        with _libraries().limit(limits=1, user_api="blas"):
            return super().ask(count)

    def _propose(self) -> Config | None:
        candidates = self._candidates or self._prepare()
        self._look_around(candidates)
        taken = [candidates.row[config] for config in self._taken]
        if len(taken) == len(candidates.configs):
            return self._any()
        worked = sum(ms is not None for ms in self.results.values())
        if len(taken) < self._blind or worked < 2:
            return candidates.configs[self._farthest(candidates.plain, taken)]
        expected = self._expected_improvement(candidates)
        expected[taken] = -np.inf
        return candidates.configs[int(expected.argmax())]

    def _prepare(self) -> Candidates:
        candidates = self._candidates = Candidates(self.points, self.rng, self.prior)
        self._times = GaussianProcess(candidates.full, candidates.lengths)
        self._works = GaussianProcess(candidates.plain)
        if candidates.warm:
            self._blind = len(self._taken) + SPREAD_WARM
        return candidates

    def _look_around(self, candidates: Candidates) -> None:
        """Make candidates of what was taken from elsewhere, and of the neighbours of the best."""
        new = candidates.add(self._taken)
        worked = [(ms, config) for config, ms in self.results.items() if ms is not None]
        best = min(worked, key=lambda entry: entry[0])[1] if worked else None
        if best is not None and best != self._best and not candidates.complete:
            new += candidates.add(self.points.neighbours(best))
        self._best = best
        if new:
            self._times.extend(candidates.full[-new:])
            self._works.extend(candidates.plain[-new:])

    def _farthest(self, vectors: Array, taken: Sequence[int]) -> int:
        rest = sorted(set(range(len(vectors))) - set(taken))
        some = self.rng.sample(rest, min(len(rest), CHOICE))
        if not taken:
            return some[0]
        apart = ((vectors[some][:, None] - vectors[taken][None]) ** 2).sum(2).min(1)
        return some[int(apart.argmax())]

    def _expected_improvement(self, candidates: Candidates) -> Array:
        """Return the expected improvement of each candidate, times the chance that it works."""
        refit = len(self.results) >= self._fitted_to * REFIT
        if refit:
            self._fitted_to = len(self.results)
            self._learned = self._choose()
        else:
            self._learned += list(self.results)[self._heard :]
        self._heard = len(self.results)
        expected = self._improvement(candidates, refit)
        if any(self.results[config] is None for config in self._learned):
            expected *= self._chance(candidates, refit)
        return expected

    def _choose(self) -> list[Config]:
        """Choose what to learn from: everything, or when that is much, the best and some others."""
        if len(self.results) <= RESULTS:
            return list(self.results)
        ranked = sorted(self.results, key=lambda c: self.results[c] or math.inf)
        others = self.rng.sample(ranked[RESULTS // 2 :], RESULTS // 2)
        return ranked[: RESULTS // 2] + others

    def _improvement(self, candidates: Candidates, refit: bool) -> Array:
        rows = [candidates.row[c] for c in self._learned]
        logs = levels([self.results[c] for c in self._learned])
        values = standardised(logs)
        if refit:
            self._times.fit(rows, values)
        best = values.min() - self._margin() / (logs.std() + 1e-9)
        pending = [candidates.row[c] for c in self._taken if c not in self.results]
        if pending:
            mean, _ = self._times.predict(rows, values)
            rows, values = rows + pending, np.append(values, mean[pending])
        mean, deviation = self._times.predict(rows, values)
        gap = (best - mean) / deviation
        density = np.exp(-(gap**2) / 2) / math.sqrt(2 * math.pi)
        return deviation * (gap * ndtr(gap) + density)

    def _margin(self) -> float:
        """Return by how much a time has to be shorter, as a difference of logarithms."""
        coarse = min(COARSE, COARSE_SHARE * self.points.size())
        return MARGIN * min(1.0, coarse / len(self.results)) ** 2

    def _chance(self, candidates: Candidates, refit: bool) -> Array:
        rows = [candidates.row[c] for c in self._learned]
        works = np.array([float(self.results[c] is not None) for c in self._learned])
        if refit:
            self._works.fit(rows, standardised(works))
        mean, deviation = self._works.predict(rows, works - works.mean())
        # The model sees 0 and 1; what lies beyond the middle, and how surely, is what counts.
        return np.maximum(ndtr((mean + works.mean() - 0.5) / (deviation + DOUBT)), LEAST_CHANCE)
