"""Transfer learning: times from other problems and devices as features of the surrogate."""

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

#: The logarithm of the length scale to expect along the times of a prior.
TIME_LENGTH = 0.3


@dataclass(frozen=True)
class Transfer:
    """A feature of the candidates for each prior, and length scales to expect.

    A column holds the logarithms of times from 0, the best, to 1: what did alike elsewhere will do
    alike here, well or badly, even where the best there is not the best here.
    """

    elsewhere: Array
    lengths: Array | None


def transfer(
    prior: Sequence[Prior], rows: Mapping[Config, int], vectors: Array, rng: random.Random
) -> Transfer:
    """Learn from each prior by itself; `rows` says which of the vectors is a config's."""
    elsewhere, lengths = [], []
    for one in sorted(prior, key=lambda one: -one.similarity)[:MOST]:
        known = {rows[config]: ms for config, ms in one.results.items() if config in rows}
        if sum(ms is not None for ms in known.values()) >= FEWEST:
            times, found = _learn(known, vectors, rng)
            elsewhere.append((times - times.min()) / (np.ptp(times) + 1e-9))
            lengths.append(found)
    if not elsewhere:
        return Transfer(np.zeros((len(vectors), 0)), None)
    expected = np.append(np.mean(lengths, axis=0), np.full(len(elsewhere), TIME_LENGTH))
    return Transfer(np.stack(elsewhere, axis=1), expected)


def _learn(
    known: Mapping[int, float | None], vectors: Array, rng: random.Random
) -> tuple[Array, Array]:
    """Return standardised times of all candidates, guessed where unknown, and the length scales."""
    rows = np.array(list(known))
    values = standardised(levels(list(known.values())))
    ranked = values.argsort(kind="stable").tolist()
    best, rest = ranked[: RESULTS // 2], ranked[RESULTS // 2 :]
    chosen = best + rng.sample(rest, min(len(rest), RESULTS // 2))
    model = GaussianProcess(vectors)
    model.fit(rows[chosen].tolist(), values[chosen])
    times = np.zeros(len(vectors))
    if len(known) < len(vectors):
        times, _ = model.predict(rows[chosen].tolist(), values[chosen])
    times[rows] = values
    return times, model.lengths


def levels(times_ms: Sequence[float | None]) -> Array:
    """Return logarithms of times, failures being as bad as the worst.

    Beyond the median, a time counts at most as far as the best is on the other side: how bad the
    bad ones are would only distract from what makes the good ones good.
    """
    logs = np.log([np.inf if ms is None else ms for ms in times_ms])
    median, best = np.median(logs[np.isfinite(logs)]), logs.min()
    return np.minimum(logs, 2 * median - best)


def standardised(values: Array) -> Array:
    return (values - values.mean()) / (values.std() + 1e-9)
