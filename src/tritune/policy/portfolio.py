"""A few configs that are enough: for every known problem one of them is nearly the best.

A table of slowdowns has gaps, because a search measures other configs for each problem. A gap is
filled with what the config did for problems like it; no stated figure relies on such a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tritune.policy.features import OTHER_KIND, is_size, log_size
from tritune.policy.measured import Measured, Valid
from tritune.space import Config

Floats = npt.NDArray[np.float64]

#: Slower than this is all the same: the config is out of the question.
HOPELESS = math.log(8.0)
#: A guess is taken to be a little worse than it looks.
CAUTION = 0.02
#: The best configs of each problem may enter the set.
CANDIDATES_PER_PROBLEM = 3


@dataclass(frozen=True)
class Portfolio:
    """The chosen configs, and what each is thought to cost for each problem."""

    configs: tuple[Config, ...]
    #: log(time / best time), by problem and config.
    costs: Floats
    #: Every known problem has a config in the set that was measured within this factor of its best.
    bound: float


def choose(rows: Sequence[Measured], valid: Valid, bound: float, most: int) -> Portfolio:
    """The smallest set that greed finds with every problem within `bound`, `most` at the most."""
    candidates = sorted(
        {c for row in rows for c in row.fastest(CANDIDATES_PER_PROBLEM)}, key=lambda c: c.key
    )
    costs = slowdown_costs(rows, candidates, valid)
    chosen: list[int] = []
    best = np.full(len(rows), HOPELESS)
    while len(chosen) < min(most, len(candidates)):
        totals = np.minimum(best[:, None], costs).sum(axis=0)
        pick = int(totals.argmin())
        if pick in chosen:
            break
        chosen.append(pick)
        best = np.minimum(best, costs[:, pick])
        if best.max() <= math.log(bound):
            break
    configs = tuple(candidates[i] for i in chosen)
    return Portfolio(configs, costs[:, chosen], measured_bound(rows, configs))


def slowdown_costs(rows: Sequence[Measured], configs: Sequence[Config], valid: Valid) -> Floats:
    """log(time / best time) of each config for each problem; guessed where nobody measured."""
    measured = np.full((len(rows), len(configs)), np.nan)
    allowed = np.ones(measured.shape, dtype=bool)
    for i, row in enumerate(rows):
        for j, config in enumerate(configs):
            slowdown = row.slowdown(config)
            if slowdown is not None:
                measured[i, j] = min(math.log(slowdown), HOPELESS)
            else:
                allowed[i, j] = valid(config, row.problem)
    known = ~np.isnan(measured)
    nearness = _nearness(rows)
    weight = nearness @ known
    guessed = nearness @ np.where(known, measured, 0.0) / np.maximum(weight, 1e-12) + CAUTION
    return np.where(known, measured, np.where(allowed & (weight > 0), guessed, HOPELESS))


def _nearness(rows: Sequence[Measured]) -> Any:
    """By pairs of problems, as `features.distance` sees them, but for all pairs at once."""
    apart = np.zeros((len(rows), len(rows)))
    for name in sorted({name for row in rows for name in row.problem}):
        values = [row.problem.get(name) for row in rows]
        if all(is_size(value) for value in values):
            sizes = np.array([log_size(value) for value in values if value is not None])
            apart += np.abs(sizes[:, None] - sizes[None, :])
        else:
            texts = np.array([repr(value) for value in values])
            apart += OTHER_KIND * (texts[:, None] != texts[None, :])
    return 1.0 / (0.5 + apart) ** 4


def measured_bound(rows: Sequence[Measured], configs: Sequence[Config]) -> float:
    """The worst of the best slowdowns; infinite if for some problem no config was measured."""
    return max(
        min((s for c in configs if (s := row.slowdown(c)) is not None), default=math.inf)
        for row in rows
    )
