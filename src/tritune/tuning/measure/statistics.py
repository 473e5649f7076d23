"""The median of time samples, and its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TypeAlias

#: Times in milliseconds of one candidate in one round of a race.
Round: TypeAlias = "tuple[float, ...]"

CONFIDENCE = 0.95


def pooled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the samples of all rounds."""
    return [ms for times in rounds for ms in times]


def median(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median of all samples."""
    return statistics.median(pooled(rounds))


def interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return a confidence interval of the median; None where the samples are too few for one.

    Between two order statistics: each sample lies below the median with probability one half,
    whatever the distribution, so how many do is binomial.
    """
    count, rank, tail = len(samples), 0, 0.0
    # The largest rank (from 1) such that it and its mirror image hold the median; 0: none does.
    while 2 * rank < count:
        # The chance that at most rank samples lie on one side of the median.
        tail += math.comb(count, rank) / 2.0**count
        if 2 * tail > 1.0 - CONFIDENCE:
            break
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[count - rank]
