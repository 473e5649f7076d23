"""The candidates of the surrogate with their vectors: a whole space, or a part that grows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np

from tritune.space import Config, Points
from tritune.tuning.search.encoding import Array, Encoding
from tritune.tuning.search.strategy import LISTABLE, Prior
from tritune.tuning.search.transfer import transfer

#: Of a space that is too large to be listed, so many configs are looked at to begin with.
SAMPLE = 20_000


class Candidates:
    """Configs in rows: `plain` has their encodings, `full` also their times elsewhere."""

    def __init__(self, points: Points, rng: random.Random, prior: Sequence[Prior]) -> None:
        self.complete = points.size() <= LISTABLE
        if self.complete:
            self.configs = list(points.configs())
        else:
            known = (c for one in prior for c in one.results if c in points)
            self.configs = list(dict.fromkeys([*points.sample(SAMPLE, rng), *known]))
        self.row = {config: row for row, config in enumerate(self.configs)}
        self._encode = Encoding(points.parameters)
        self.plain = self._encode(self.configs)
        learned = transfer(prior, self.row, self.plain, rng)
        self._elsewhere = learned.elsewhere
        self.lengths = learned.lengths

    @property
    def full(self) -> Array:
        return np.hstack([self.plain, self._elsewhere])

    @property
    def warm(self) -> bool:
        """Return whether anything is known from elsewhere."""
        return self.lengths is not None

    def add(self, configs: Iterable[Config]) -> int:
        """Add those that are not there; returns how many there were."""
        new = [config for config in dict.fromkeys(configs) if config not in self.row]
        if new:
            vectors = self._encode(new)
            nearest = [int(((self.plain - one) ** 2).sum(1).argmin()) for one in vectors]
            self.row.update((config, len(self.configs) + n) for n, config in enumerate(new))
            self.configs += new
            self.plain = np.vstack([self.plain, vectors])
            self._elsewhere = np.vstack([self._elsewhere, self._elsewhere[nearest]])
        return len(new)
