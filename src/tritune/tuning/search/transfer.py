"""What was measured elsewhere, as something that a model can begin from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tritune.space import Config
from tritune.tuning.search.encoding import Array
from tritune.tuning.search.gaussian import GaussianProcess
from tritune.tuning.search.strategy import Prior

#: So many priors are learned from, the most similar ones.
MOST = 4

#: So many results of a prior are learned from: half of them the best, half by chance.
RESULTS = 200

#: Fewer results than this say nothing.
FEWEST = 8


@dataclass(frozen=True)
class Transfer:
    """How every candidate is expected to do, one column per prior, and how smooth times are."""

    trend: Array
    lengths: Array | None


def transfer(
    prior: Sequence[Prior], rows: Mapping[Config, int], vectors: Array, rng: random.Random
) -> Transfer:
    """Learn from each prior by itself; the rows say which vector is which config's."""
    columns, lengths = [], []
    for one in sorted(prior, key=lambda one: -one.similarity)[:MOST]:
        known = {rows[config]: ms for config, ms in one.results.items() if config in rows}
        if sum(ms is not None for ms in known.values()) >= FEWEST:
            column, found = _learn(known, vectors, rng)
            columns.append(column * one.similarity)
            lengths.append(found)
    if not columns:
        return Transfer(np.zeros((len(vectors), 0)), None)
    return Transfer(np.stack(columns, axis=1), np.mean(lengths, axis=0))


def _learn(
    known: Mapping[int, float | None], vectors: Array, rng: random.Random
) -> tuple[Array, Array]:
    """Standardised times of all candidates, guessed where unknown, and the length scales."""
    rows = np.array(list(known))
    values = levels(list(known.values()))
    values = (values - values.mean()) / (values.std() + 1e-9)
    ranked = np.argsort(values, kind="stable")
    best, rest = ranked[: RESULTS // 2].tolist(), ranked[RESULTS // 2 :].tolist()
    chosen = best + rng.sample(rest, min(len(rest), RESULTS // 2))
    model = GaussianProcess(vectors)
    model.fit(rows[chosen].tolist(), values[chosen])
    if len(known) < len(vectors):
        column, _ = model.predict(rows[chosen].tolist(), values[chosen])
    else:
        column = np.zeros(len(vectors))
    column[rows] = values
    return column, model.lengths


def levels(times_ms: Sequence[float | None]) -> Array:
    """Logarithms of times, failures being as bad as the worst.

    Beyond the median, a time counts at most as far as the best is on the other side: how bad the
    bad ones are would only distract from what makes the good ones good.
    """
    logs = np.log([np.inf if ms is None else ms for ms in times_ms])
    median, best = np.median(logs[np.isfinite(logs)]), logs.min()
    return np.minimum(logs, 2 * median - best)
