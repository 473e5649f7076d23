"""Points that are listed: the configs of a recorded space, a pack or a user."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tritune.space.config import Config, SpaceError, Value, distinct
from tritune.space.points import changed_once


class Listed:
    """Exactly these configs. A name may be missing from some of them."""

    def __init__(self, configs: Iterable[Config]) -> None:
        self._configs = tuple(dict.fromkeys(configs))
        if not self._configs:
            raise SpaceError("a list of configs has to hold at least one")
        self._members = {config: config for config in self._configs}
        self.parameters: Mapping[str, tuple[Value, ...]] = _values_by_name(self._configs)

    def size(self) -> int:
        return len(self._configs)

    def configs(self) -> Iterator[Config]:
        return iter(self._configs)

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        return rng.sample(self._configs, min(count, len(self._configs)))

    def neighbours(self, config: Config) -> list[Config]:
        values = config.as_kwargs()
        if values.keys() - self.parameters.keys():
            return []
        # None stands for a name that is missing.
        domains = {name: (None, *choices) for name, choices in self.parameters.items()}
        others = (
            Config(tuple((name, value) for name, value in changed.items() if value is not None))
            for changed in changed_once({name: values.get(name) for name in domains}, domains)
        )
        return [self._members[other] for other in others if other in self._members]

    def __contains__(self, config: object) -> bool:
        return config in self._members


def _values_by_name(configs: Iterable[Config]) -> dict[str, tuple[Value, ...]]:
    found: dict[str, list[Value]] = defaultdict(list)
    for config in configs:
        for name, value in config.values:
            found[name].append(value)
    return {name: in_order(distinct(values)) for name, values in found.items()}


def in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    """Sort numbers by size; leave anything else in the order in which it was met."""
    listed = tuple(values)
    if all(isinstance(value, (int, float)) for value in listed):
        return tuple(sorted(listed, key=float))
    return listed
