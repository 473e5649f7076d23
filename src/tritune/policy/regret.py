"""How good answers are for problems that were not learned from."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tritune.policy.measured import Measured, Valid
from tritune.policy.nearest import Nearest
from tritune.policy.tree import Tree

Chooser: TypeAlias = "Tree | Nearest"
#: Makes one or several choosers from measurements.
Learner = Callable[[Sequence[Measured], Valid], Sequence[Chooser]]

#: Parts that the problems are split into; each is held out once.
FOLDS = 5
#: What an answer costs at most: one that fails counts as eight times as slow as the best.
LARGEST_COST = 7.0
#: An answer that nobody has measured is judged as if it cost this; it is in no figure.
UNMEASURED_COST = 0.1


@dataclass(frozen=True)
class Regret:
    """By which share answers were slower than the best known config, for problems held out.

    Only answers that somebody had measured are counted: for the others nobody knows.
    """

    mean: float
    p95: float
    #: Problems that were held out and whose answer had been measured, and all that were held out.
    measured: int
    problems: int

    @property
    def judged(self) -> float:
        """For choosing between ways of choosing: knowing less is no advantage."""
        unmeasured = self.problems - self.measured
        return (self.mean * self.measured + UNMEASURED_COST * unmeasured) / self.problems


def held_out_regrets(rows: Sequence[Measured], valid: Valid, learner: Learner) -> list[Regret]:
    """Learn without a part of the problems, ask for those, and look what the answers cost.

    One figure for each chooser that the learner gives.
    """
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    costs: list[list[float | None]] = []
    for fold in range(FOLDS):
        held_out = set(order[fold::FOLDS])
        found = learner([row for i, row in enumerate(rows) if i not in held_out], valid)
        costs = costs or [[] for _ in found]
        for each, chooser in zip(costs, found, strict=True):
            each += [cost_of_answer(chooser, rows[i], valid) for i in sorted(held_out)]
    return [_regret(each) for each in costs]


def cost_of_answer(chooser: Chooser, row: Measured, valid: Valid) -> float | None:
    """By which share of the best time a call would be slower; None if nobody measured that.

    Where the chooser has nothing to offer, a call runs with the kernel's default.
    """
    offered = (c for c in chooser.ranked(row.problem) if valid(c, row.problem))
    config = next(offered, row.default)
    cost = None if config is None else row.cost(config)
    return None if cost is None else min(cost, LARGEST_COST)


def _regret(costs: Sequence[float | None]) -> Regret:
    known = sorted(cost for cost in costs if cost is not None)
    if not known:
        return Regret(0.0, 0.0, 0, len(costs))
    p95 = known[math.ceil(0.95 * len(known)) - 1]
    return Regret(statistics.fmean(known), p95, len(known), len(costs))
