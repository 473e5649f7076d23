"""A policy learned from what was measured: a few configs, and a tree that chooses among them.

It answers for problems that nobody measured, and says how well: the bound of its set of configs on
the problems it knows, and its regret on problems that were held out while it was learned.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tritune.policy import portfolio, tree
from tritune.policy.features import Fields
from tritune.policy.measured import Measured, Valid, digest
from tritune.policy.nearest import Nearest
from tritune.policy.tree import Tree
from tritune.space import Config

#: With fewer problems than these, the nearest one answers: there is nothing to learn from.
FEWEST_PROBLEMS = 5
#: The set of configs grows until every known problem has one within this factor of its best...
BOUND = 1.03
#: ... or until there are so many.
MOST_CONFIGS = 16
#: Parts that the problems are split into; each is held out once.
FOLDS = 5
#: How few problems a leaf of the tree may hold: the best of these is found by holding out, too.
LEAF_SIZES = (1, 2, 4)

Chooser: TypeAlias = "Tree | Nearest"
Learner = Callable[[Sequence[Measured], Valid], Sequence[Chooser]]


@dataclass(frozen=True)
class Regret:
    """How much slower than the best known config the answers were, for problems held out.

    Only answers that somebody had measured are counted: for the others nobody knows.
    """

    mean: float
    p95: float
    #: Problems that were held out and whose answer had been measured, and all that were held out.
    measured: int
    problems: int


@dataclass(frozen=True)
class LearnedPolicy:
    kernel: str
    identity: str
    #: The device's fingerprint.
    device: str
    chooser: Chooser
    #: Each known problem has a config in the set that was measured within this factor of its best;
    #: None if for some problem none of them was measured.
    bound: float | None
    #: None where there were too few problems to hold any out.
    regret: Regret | None
    problems: int
    #: A digest of the data it was learned from.
    data: str

    def describe(self) -> list[str]:
        """What can be expected of a policy, in lines for people."""
        kind = "a tree over" if isinstance(self.chooser, Tree) else "the nearest problem's, of"
        count = len(self.chooser.configs)
        lines = [
            f"{kind} {count} config{'s' * (count != 1)}, learned from {self.problems} problems"
        ]
        if self.bound is None:
            lines.append("bound: unknown, some problems were measured with none of these configs")
        else:
            lines.append(
                f"bound: each known problem has one of them within {self.bound - 1:.1%} of its best"
            )
        regret = self.regret
        if regret is None:
            lines.append("regret on held-out problems: unknown, too few problems")
        else:
            lines.append(
                f"regret on held-out problems: mean {regret.mean:.1%}, 95th percentile "
                f"{regret.p95:.1%} ({regret.measured} of {regret.problems} answers were measured)"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        kind = "tree" if isinstance(self.chooser, Tree) else "nearest"
        regret = self.regret
        return {
            "kernel": self.kernel,
            "identity": self.identity,
            "device": self.device,
            "problems": self.problems,
            "bound": self.bound,
            "regret": None if regret is None else dict(vars(regret)),
            "data": self.data,
            kind: self.chooser.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LearnedPolicy:
        chooser: Chooser
        if "tree" in data:
            chooser = Tree.from_json(data["tree"])
        else:
            chooser = Nearest.from_json(data["nearest"])
        return LearnedPolicy(
            kernel=data["kernel"],
            identity=data["identity"],
            device=data["device"],
            chooser=chooser,
            bound=data["bound"],
            regret=None if data["regret"] is None else Regret(**data["regret"]),
            problems=data["problems"],
            data=data["data"],
        )


def fit(
    rows: Sequence[Measured], valid: Valid, kernel: str, identity: str, device: str
) -> LearnedPolicy | None:
    """Learn from everything that was measured; None from nothing."""
    if not rows:
        return None
    chooser = learn(rows, valid)
    # Choosing between ways of choosing is part of what is held out from.
    regrets = held_out_regrets(rows, valid, lambda rows, valid: [learn(rows, valid)])
    bound = portfolio.measured_bound(rows, chooser.configs)
    return LearnedPolicy(
        kernel,
        identity,
        device,
        chooser,
        bound if math.isfinite(bound) else None,
        regrets[0] if regrets else None,
        len(rows),
        digest(rows),
    )


def learn(rows: Sequence[Measured], valid: Valid) -> Chooser:
    """The way of choosing that does best on problems held out of `rows`."""
    found = choosers(rows, valid)
    regrets = held_out_regrets(rows, valid, choosers)
    return found[min(range(len(found)), key=lambda i: _judged(regrets[i]))] if regrets else found[0]


def choosers(rows: Sequence[Measured], valid: Valid) -> list[Chooser]:
    """Every way of choosing that may be taken, each learned from all rows."""
    nearest = Nearest([(row.problem, row.fastest(1)[0]) for row in rows])
    if len(rows) < FEWEST_PROBLEMS:
        return [nearest]
    chosen = portfolio.choose(rows, valid, BOUND, MOST_CONFIGS)
    problems = [row.problem for row in rows]
    return [*(tree.learn(problems, chosen, size) for size in LEAF_SIZES), nearest]


def held_out_regrets(
    rows: Sequence[Measured], valid: Valid, learner: Learner
) -> list[Regret | None]:
    """Learn without a part of the problems, ask for those, and look what the answers cost.

    The learner may give several choosers; each gets its own figures. None from too few problems.
    """
    if len(rows) <= FEWEST_PROBLEMS:
        return []
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    costs: list[list[float | None]] = []
    for fold in range(FOLDS):
        held_out = set(order[fold::FOLDS])
        found = learner([row for i, row in enumerate(rows) if i not in held_out], valid)
        costs = costs or [[] for _ in found]
        for each, chooser in zip(costs, found, strict=False):
            each += [cost_of_answer(chooser, rows[i], valid) for i in sorted(held_out)]
    return [_regret(each) for each in costs]


def _regret(costs: Sequence[float | None]) -> Regret | None:
    known = sorted(cost for cost in costs if cost is not None)
    if not known:
        return None
    p95 = known[math.ceil(0.95 * len(known)) - 1]
    return Regret(statistics.fmean(known), p95, len(known), len(costs))


def wanted(rows: Sequence[Measured], chooser: Chooser, valid: Valid) -> list[tuple[Fields, Config]]:
    """Measurements that would make the figures sure: configs of the set that were not tried for a
    problem. Those for problems with few of them come first.
    """
    missing = [
        [
            (row.problem, c)
            for c in chooser.configs
            if c not in row.times_ms and valid(c, row.problem)
        ]
        for row in rows
    ]
    return [pair for each in sorted(missing, key=len, reverse=True) for pair in each]


def cost_of_answer(chooser: Chooser, row: Measured, valid: Valid) -> float | None:
    """By which share of the best time an answer is slower; None if nobody measured it."""
    for config in chooser.ranked(row.problem):
        if valid(config, row.problem):
            slowdown = row.slowdown(config)
            return None if slowdown is None else slowdown - 1.0
    return None


def _judged(regret: Regret | None) -> tuple[float, float]:
    return (math.inf, math.inf) if regret is None else (regret.mean, regret.p95)
