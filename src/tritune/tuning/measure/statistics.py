"""How long something takes, from samples that are never twice the same."""

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


def interval(
    samples: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return a confidence interval of the median; None where the samples are too few for one.

    Between two order statistics: each sample lies below the median with probability one half,
    whatever the distribution, so how many do is binomial.
    """
    count = len(samples)
    rank = _rank(count, confidence)
    if rank == 0:
        return None
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[count - rank]


def faster(
    ours: Sequence[Sequence[float]],
    theirs: Sequence[Sequence[float]],
    confidence: float = CONFIDENCE,
) -> bool | None:
    """Return whether one candidate of a race is faster than another; None: nobody can tell.

    Rounds are compared in pairs, for what slows a machine down hits both of a pair alike. It takes
    six rounds in common to be sure of anything at 95 %.
    """
    pairs = zip(ours, theirs, strict=False)
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs if a and b]
    limits = interval(ratios, confidence)
    if limits is None or limits[0] <= 1.0 <= limits[1]:
        return None
    return limits[1] < 1.0


def _rank(count: int, confidence: float) -> int:
    """Return the largest rank (from 1) such that it and its mirror image hold the median; 0: none
    does.
    """
    # The chance that at most rank - 1 samples lie on one side of the median.
    tail, rank = 0.0, 0
    while 2 * rank < count:
        tail += math.comb(count, rank) / 2.0**count
        if 2 * tail > 1.0 - confidence:
            break
        rank += 1
    return rank
