"""Spaces made for the tests, whose optimum is known, and a search through them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

from tritune.space import Config, Listed, Points
from tritune.tuning.search import STRATEGIES, Prior, Strategy

#: 8 x 8 x 4 x 2 = 512 configs.
EVERY = [
    Config.of(block=block, rows=rows, stages=stages, preload=preload)
    for block, rows, stages, preload in itertools.product(
        (16, 32, 48, 64, 96, 128, 192, 256), range(1, 9), (1, 2, 3, 4), (False, True)
    )
]

OPTIMUM = Config.of(block=64, rows=6, stages=2, preload=True)


def easy_ms(config: Config) -> float:
    """A bowl around the optimum: each parameter costs by itself."""
    far = abs(math.log2(float(config["block"]) / 64)) + abs(float(config["rows"]) - 6) / 2
    return math.exp(far + abs(float(config["stages"]) - 2) + (config["preload"] is False))


class Search:
    """A strategy with what it asked for and what it was told."""

    def __init__(
        self,
        name: str,
        points: Points | None = None,
        time_of: Callable[[Config], float | None] = easy_ms,
        seed: int = 0,
        prior: tuple[Prior, ...] = (),
    ) -> None:
        self.strategy: Strategy = STRATEGIES[name](
            points or Listed(EVERY), random.Random(seed), prior
        )
        self.time_of = time_of
        self.asked: list[Config] = []

    def run(self, trials: int, batch: int = 1) -> list[Config]:
        """Ask and tell until there were so many trials, or there is nothing left."""
        while len(self.asked) < trials:
            configs = self.strategy.ask(min(batch, trials - len(self.asked)))
            if not configs:
                break
            self.asked += configs
            for config in configs:
                self.strategy.tell(config, self.time_of(config))
        return self.asked

    def best(self) -> Config:
        worked = [c for c in self.asked if self.time_of(c) is not None]
        return min(worked, key=lambda c: self.time_of(c) or math.inf)


class Huge:
    """More points than anybody could list: six digits in base 16, none of them after a larger."""

    parameters = {f"p{place}": tuple(range(1, 17)) for place in range(6)}  # noqa: RUF012

    def size(self) -> int:
        return math.comb(16 + 5, 6)

    def configs(self) -> Iterator[Config]:
        for digits in itertools.combinations_with_replacement(range(1, 17), 6):
            yield self._config(digits)

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        found: dict[Config, None] = {}
        while len(found) < count:
            found[self._config(sorted(rng.randrange(1, 17) for _ in range(6)))] = None
        return list(found)

    def neighbours(self, config: Config) -> list[Config]:
        digits = [int(config[name]) for name in self.parameters]
        changed = (
            [*digits[:place], digit, *digits[place + 1 :]]
            for place in range(6)
            for digit in range(1, 17)
        )
        return [c for c in map(self._config, changed) if c in self and c != config]

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Config) or set(config.as_kwargs()) != set(self.parameters):
            return False
        digits = [int(config[name]) for name in self.parameters]
        return digits == sorted(digits) and all(1 <= digit <= 16 for digit in digits)

    def _config(self, digits: tuple[int, ...] | list[int]) -> Config:
        return Config(tuple(zip(self.parameters, digits, strict=True)))
