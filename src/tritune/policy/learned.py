"""A policy learned from what was measured: a few configs, and a tree that chooses among them.

It answers for problems that nobody measured where there is evidence that the answer is no slower
than the kernel's default (`evidence.py`), and says how well: the bound of its set of configs on the
problems it knows, and its regret on problems that were held out while it was learned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.policy import portfolio, tree
from tritune.policy.evidence import Evidence
from tritune.policy.features import Fields
from tritune.policy.measured import Measured, Valid, digest
from tritune.policy.nearest import Nearest
from tritune.policy.regret import (
    AgainstDefault,
    Answerer,
    Chooser,
    Regret,
    against_default,
    first_choice,
    held_out_answers,
    regret_of,
)
from tritune.policy.tree import Tree
from tritune.space import Config

#: With fewer problems than these, the nearest one answers: there is nothing to learn from.
FEWEST_PROBLEMS = 5
#: The set of configs grows until every known problem has one within this factor of its best...
BOUND = 1.03
#: ... or until there are so many.
MOST_CONFIGS = 32
#: How few problems a leaf of the tree may hold: the best of these is found by holding out, too.
LEAF_SIZES = (1, 2, 4)
#: Answers are trusted after so many for held-out problems that were not the default...
FEWEST_ANSWERS = 3
#: ... none of which was slower than the default by more than this share of its time.
NOISE = 0.05


@dataclass(frozen=True)
class LearnedPolicy:
    kernel: str
    identity: str
    #: The device's fingerprint.
    device: str
    chooser: Chooser
    evidence: Evidence
    #: Each known problem has a config in the set that was measured within this factor of its best;
    #: None if for some problem none of them was measured.
    bound: float | None
    #: Of the chooser's first choices; None where there were too few problems to hold any out.
    regret: Regret | None
    #: Of the answers that calls get; None likewise.
    held_out: AgainstDefault | None
    problems: int
    #: A digest of the data it was learned from.
    data: str

    @property
    def trusted(self) -> bool:
        """Whether answers for problems held out are known to be no slower than the default."""
        held_out = self.held_out
        if held_out is None or held_out.answers < FEWEST_ANSWERS:
            return False
        return held_out.slower <= NOISE

    def answer(self, fields: Fields, default: Config, valid: Valid) -> Config | None:
        """The config for a problem that was not measured and whose default is this; None where
        nothing is known to be better.
        """
        return (
            supported(self.chooser, self.evidence, fields, default, valid) if self.trusted else None
        )

    def describe(self) -> list[str]:
        """What can be expected of a policy, in lines for people."""
        kind = "a tree over" if isinstance(self.chooser, Tree) else "the nearest problem's, of"
        count = len(self.chooser.configs)
        lines = [
            f"{kind} {count} config{'s' * (count != 1)}, "
            f"learned from {self.problems} problem{'s' * (self.problems != 1)}"
        ]
        if self.bound is None:
            lines.append("bound: unknown, some problems were measured with none of these configs")
        else:
            lines.append(
                f"bound: each known problem has one of them within {self.bound - 1:.1%} of its best"
            )
        regret = self.regret
        if regret is None or not regret.measured:
            lines.append("regret on held-out problems: unknown, too little was measured")
        else:
            lines.append(
                f"regret on held-out problems: mean {regret.mean:.1%}, 95th percentile "
                f"{regret.p95:.1%} ({regret.measured} of {regret.problems} answers were measured)"
            )
        lines.append(f"problems that were not tuned: {self.answers}")
        return lines

    @property
    def answers(self) -> str:
        """What problems that were not tuned run with, in words."""
        if self.trusted:
            return (
                "one of these configs where measurements on both sides speak for it, else the "
                "default"
            )
        why = "too little was measured to know better"
        if self.held_out is not None and self.held_out.slower > NOISE:
            why = f"a held-out answer was {self.held_out.slower:.0%} slower than it"
        return f"the default config, as {why}"

    def to_json(self) -> dict[str, Any]:
        kind = "tree" if isinstance(self.chooser, Tree) else "nearest"
        regret, held_out = self.regret, self.held_out
        return {
            "kernel": self.kernel,
            "identity": self.identity,
            "device": self.device,
            "problems": self.problems,
            "bound": self.bound,
            "regret": None if regret is None else dict(vars(regret)),
            "held_out": None if held_out is None else dict(vars(held_out)),
            "data": self.data,
            "evidence": self.evidence.to_json(),
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
            evidence=Evidence.from_json(data["evidence"]),
            bound=data["bound"],
            regret=None if data["regret"] is None else Regret(**data["regret"]),
            held_out=None if data["held_out"] is None else AgainstDefault(**data["held_out"]),
            problems=data["problems"],
            data=data["data"],
        )


def fit(
    rows: Sequence[Measured], valid: Valid, kernel: str, identity: str, device: str
) -> LearnedPolicy | None:
    """Learn from everything that was measured; None from nothing."""
    if not rows:
        return None
    valid = _remembered(valid)
    chooser = learn(rows, valid)
    regret = held_out = None
    if len(rows) >= FEWEST_PROBLEMS:
        # Choosing between the ways of choosing belongs to what the held-out problems must not see.
        first, called = held_out_answers(rows, lambda rows: _answerers(rows, valid))
        regret, held_out = regret_of(first), against_default(called)
    bound = portfolio.measured_bound(rows, chooser.configs)
    return LearnedPolicy(
        kernel,
        identity,
        device,
        chooser,
        Evidence.of(rows, chooser.configs),
        bound if math.isfinite(bound) else None,
        regret,
        held_out,
        len(rows),
        digest(rows),
    )


def learn(rows: Sequence[Measured], valid: Valid) -> Chooser:
    """The way of choosing that does best on problems held out of `rows`."""
    if len(rows) < FEWEST_PROBLEMS:
        return _nearest(rows)

    def first_choices(rows: Sequence[Measured]) -> list[Answerer]:
        return [first_choice(chooser, valid) for chooser in choosers(rows, valid)]

    regrets = [regret_of(answers) for answers in held_out_answers(rows, first_choices)]
    found = choosers(rows, valid)
    return min(zip(regrets, found, strict=True), key=lambda pair: pair[0].judged)[1]


def supported(
    chooser: Chooser, evidence: Evidence, fields: Fields, default: Config, valid: Valid
) -> Config | None:
    """The first config that a chooser prefers to the default and that measurements speak for."""
    for config in chooser.ranked(fields):
        if config == default:
            return None
        if valid(config, fields) and evidence.supports(fields, config, default):
            return config
    return None


def _answerers(rows: Sequence[Measured], valid: Valid) -> tuple[Answerer, Answerer]:
    """What is learned from these rows, in two ways: its first choices, and the answers of calls."""
    chooser = learn(rows, valid)
    evidence = Evidence.of(rows, chooser.configs)

    def called(row: Measured) -> Config | None:
        if row.default is None:
            return None
        return supported(chooser, evidence, row.problem, row.default, valid) or row.default

    return first_choice(chooser, valid), called


def choosers(rows: Sequence[Measured], valid: Valid) -> list[Chooser]:
    """Every way of choosing that may be taken, each learned from all rows."""
    chosen = portfolio.choose(rows, valid, BOUND, MOST_CONFIGS)
    problems = [row.problem for row in rows]
    return [*(tree.learn(problems, chosen, size) for size in LEAF_SIZES), _nearest(rows)]


def _nearest(rows: Sequence[Measured]) -> Nearest:
    return Nearest([(row.problem, row.fastest(1)[0]) for row in rows])


def wanted(rows: Sequence[Measured], chooser: Chooser, valid: Valid) -> list[tuple[Fields, Config]]:
    """Measurements that would make the figures sure: configs of the set that were not tried for a
    problem. The problems that lack most of them come first.
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


def _remembered(valid: Valid) -> Valid:
    """The same problems are asked about again and again while parts of them are held out."""
    known: dict[tuple[Config, int], bool] = {}

    def answer(config: Config, fields: Fields) -> bool:
        key = (config, id(fields))
        if key not in known:
            known[key] = valid(config, fields)
        return known[key]

    return answer
