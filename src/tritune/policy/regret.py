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
from tritune.space import Config

Chooser: TypeAlias = "Tree | Nearest"
#: What a call of a known problem would run with, were the problem not known; None: nobody can say.
Answerer = Callable[[Measured], "Config | None"]
#: Makes one or several from measurements.
Learner = Callable[[Sequence[Measured]], Sequence[Answerer]]
Answers = Sequence[tuple[Measured, "Config | None"]]

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


@dataclass(frozen=True)
class AgainstDefault:
    """How answers that are not the default compare with it, for problems held out."""

    #: So many were measured, and the default too.
    answers: int
    #: By which share of the default's time the worst of them was slower; at most 0 if none was.
    slower: float


def held_out_answers(rows: Sequence[Measured], learner: Learner) -> list[Answers]:
    """Learn without a part of the problems and ask for those, part by part.

    The answers of each way of answering that the learner gives.
    """
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    answers: list[list[tuple[Measured, Config | None]]] = []
    for fold in range(FOLDS):
        held_out = set(order[fold::FOLDS])
        found = learner([row for i, row in enumerate(rows) if i not in held_out])
        answers = answers or [[] for _ in found]
        for each, answer in zip(answers, found, strict=True):
            each += [(rows[i], answer(rows[i])) for i in sorted(held_out)]
    return list(answers)


def first_choice(chooser: Chooser, valid: Valid) -> Answerer:
    """Answer with what a chooser likes best, and with the default where it has nothing to offer."""

    def answer(row: Measured) -> Config | None:
        offered = (c for c in chooser.ranked(row.problem) if valid(c, row.problem))
        return next(offered, row.default)

    return answer


def cost_of_answer(config: Config | None, row: Measured) -> float | None:
    """By which share of the best time a call would be slower; None if nobody measured that."""
    cost = None if config is None else row.cost(config)
    return None if cost is None else min(cost, LARGEST_COST)


def regret_of(answers: Answers) -> Regret:
    costs = (cost_of_answer(config, row) for row, config in answers)
    known = sorted(cost for cost in costs if cost is not None)
    if not known:
        return Regret(0.0, 0.0, 0, len(answers))
    p95 = known[math.ceil(0.95 * len(known)) - 1]
    return Regret(statistics.fmean(known), p95, len(known), len(answers))


def against_default(answers: Answers) -> AgainstDefault:
    others = [(row, config) for row, config in answers if config not in (None, row.default)]
    slower = [each for row, c in others if (each := row.slower_than_default(c)) is not None]
    return AgainstDefault(len(slower), min(max(slower, default=0.0), LARGEST_COST))
