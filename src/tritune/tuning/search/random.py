"""Random search: the baseline for every other strategy."""

from __future__ import annotations

from tritune.space import Config
from tritune.tuning.search.strategy import Strategy


class Random(Strategy):
    """Tries configs in random order and learns nothing."""

    name = "random"

    def _propose(self) -> Config | None:
        return self._any()
