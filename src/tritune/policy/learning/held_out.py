"""Measure how good answers are for problems that were held out while learning."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tritune.policy.learning.evidence import Evidence
from tritune.policy.learning.measured import Measured, Valid
from tritune.space import Config

Answers = Sequence[tuple[Measured, "Config | None"]]

#: The number of parts that the problems are split into; each is held out once.
FOLDS = 5
#: What an answer costs at most: one that fails counts as eight times as slow as the best.
LARGEST_COST = 7.0


@dataclass(frozen=True)
class Regret:
    """The share by which answers are slower than the best known config, for held-out problems.

    Only answers that somebody had measured are counted: for the others nobody knows.
    """

    mean: float
    p95: float
    #: Problems that were held out and whose answer had been measured, and all that were held out.
    measured: int
    problems: int


@dataclass(frozen=True)
class AgainstDefault:
    """A comparison of answers with the default, for held-out problems."""

    #: The number of answers that were measured, and the default too.
    answers: int
    #: By which share of the default's time the worst of them was slower; at most 0 if none was.
    slower: float


def held_out(rows: Sequence[Measured], valid: Valid) -> tuple[Regret, AgainstDefault]:
    """Learn without a part of the problems and ask for those, part by part.

    The regret is that of the nearest problems' configs; what is compared with the default is what
    calls get.
    """
    nearest: list[tuple[Measured, Config | None]] = []
    called: list[tuple[Measured, Config | None]] = []
    for row, evidence in _folds(rows):
        offered = (c for c in evidence.nearest(row.problem) if valid(c, row.problem))
        nearest.append((row, next(offered, row.default)))
        if row.default is not None:
            found = evidence.answer(row.problem, row.default, valid)
            called.append((row, found or row.default))
    return regret_of(nearest), against_default(called)


def _folds(rows: Sequence[Measured]) -> Iterator[tuple[Measured, Evidence]]:
    """Yield each problem with what is known when its part is held out."""
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    for fold in range(FOLDS):
        out = set(order[fold::FOLDS])
        evidence = Evidence.of([row for i, row in enumerate(rows) if i not in out])
        yield from ((rows[i], evidence) for i in sorted(out))


def cost_of_answer(config: Config | None, row: Measured) -> float | None:
    """Return by which share of the best time a call is slower; None if nobody measured that."""
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
