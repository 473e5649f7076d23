"""Points that are listed: the configs of a recorded space, a pack or a user."""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tritune.space.config import Config, SpaceError, Value, distinct

#: A value with its type: 1 and True are two.
_Typed = tuple[type, Value]


class Listed:
    """Exactly these configs. A name may be missing from some of them."""

    def __init__(self, configs: Iterable[Config]) -> None:
        self._configs = tuple(dict.fromkeys(configs))
        if not self._configs:
            raise SpaceError("a list of configs has to hold at least one")
        self._members = frozenset(self._configs)
        self.parameters: Mapping[str, tuple[Value, ...]] = _values_by_name(self._configs)

    def size(self) -> int:
        return len(self._configs)

    def configs(self) -> Iterator[Config]:
        return iter(self._configs)

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        return rng.sample(self._configs, min(count, len(self._configs)))

    def neighbours(self, config: Config) -> list[Config]:
        places = [
            self._places[name].get((type(config[name]), config[name])) if name in config else 0
            for name in self.parameters
        ]
        strange = [axis for axis, place in enumerate(places) if place is None]
        if len(strange) > 1 or any(name not in self.parameters for name, _ in config.values):
            return []
        found = []
        for axis in strange or range(len(places)):
            here = places[axis]
            for place, other in self._lines.get((axis, *_without(places, axis)), ()):
                if other != config:
                    distance = 1 if here is None else abs(place - here)
                    found.append((distance, axis, place, other))
        return [other for *_, other in sorted(found, key=lambda entry: entry[:3])]

    def __contains__(self, config: object) -> bool:
        return config in self._members

    @functools.cached_property
    def _places(self) -> dict[str, dict[_Typed, int]]:
        """Return the place of each value among its parameter's; 0 stands for an absent one."""
        return {
            name: {(type(value), value): place for place, value in enumerate(values, 1)}
            for name, values in self.parameters.items()
        }

    @functools.cached_property
    def _lines(self) -> dict[tuple[int | None, ...], list[tuple[int, Config]]]:
        """Return the configs that differ in one parameter, by its axis and the other places."""
        lines: dict[tuple[int | None, ...], list[tuple[int, Config]]] = defaultdict(list)
        for config in self._configs:
            values = config.as_kwargs()
            places = [
                self._places[name][type(values[name]), values[name]] if name in values else 0
                for name in self.parameters
            ]
            for axis, place in enumerate(places):
                lines[(axis, *_without(places, axis))].append((place, config))
        return dict(lines)


def _without(places: list[int | None] | list[int], axis: int) -> list[int | None]:
    return [*places[:axis], *places[axis + 1 :]]


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
