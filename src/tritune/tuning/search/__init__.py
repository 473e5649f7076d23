"""Search strategies, one per file: each is asked for configs and told how long they took."""

from tritune.tuning.search.exhaustive import Exhaustive
from tritune.tuning.search.random import Random
from tritune.tuning.search.strategy import Prior, Strategy
from tritune.tuning.search.surrogate import Surrogate

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Surrogate, Random, Exhaustive)
}

DEFAULT_STRATEGY = Surrogate.name

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Prior", "Strategy"]
