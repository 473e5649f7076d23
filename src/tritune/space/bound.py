"""A space on one target for one problem: the points that its constraints leave."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritune.space.config import Config, SpaceError, Value, has_value
from tritune.space.expression import Expression, suggestion
from tritune.space.level import Domain, Point, computed_domain
from tritune.space.points import changed_once
from tritune.space.search import COUNT_LIMIT, Search, TooLargeError

#: Draws for each config that is wanted of a space too large to count.
_DRAWS = 1_000


class BoundSpace:
    """The valid points, which are found by search."""

    def __init__(
        self,
        domains: Mapping[str, Domain | Expression],
        constraints: Sequence[Expression],
        known: Mapping[str, Any],
        count_limit: int = COUNT_LIMIT,
    ) -> None:
        self._count_limit = count_limit
        self._domains = domains
        self._constraints = constraints
        self._known = known

    @property
    def parameters(self) -> Mapping[str, tuple[Value, ...]]:
        return self._search.values

    def size(self) -> int:
        """Return the number of configs; an estimate where counting them would take too long."""
        return self._estimate if self._count is None else self._count

    def configs(self) -> Iterator[Config]:
        return map(self._config, self._search.points())

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        if self._count is None or self._count > sys.maxsize:
            return self._drawn(count, rng)
        numbers = rng.sample(range(self._count), min(count, self._count))
        return [self._config(self._search.point(number)) for number in numbers]

    def neighbours(self, config: Config) -> list[Config]:
        values = config.as_kwargs()
        if values.keys() != self._domains.keys():
            return []
        known = {**self._known, **values}
        domains = {name: self._domain(name, known) for name in self._domains}
        others = (
            Config(tuple((name, changed[name]) for name in domains))
            for changed in changed_once(values, domains)
        )
        return [other for other in others if other in self]

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and not self.objections(config)

    def objections(self, config: Config) -> list[str]:
        """Return every reason why the config is not one of the points."""
        values = config.as_kwargs()
        family = self._known["family"]
        reasons = [
            f"{name} does not exist on {family}, {suggestion(name, self._domains)}"
            for name in values
            if name not in self._domains
        ]
        reasons += [f"{name} is missing" for name in self._domains if name not in values]
        if reasons:
            return reasons
        known = {**self._known, **values}
        for name, value in values.items():
            try:
                domain = self._domain(name, known)
            except SpaceError as error:
                reasons.append(str(error))
            else:
                if not has_value(domain, value):
                    reasons.append(f"{name}={value!r} is none of {domain}")
        if reasons:
            return reasons
        for rule in self._constraints:
            try:
                if not rule.value(known):
                    reasons.append(f"{rule.purpose} does not hold")
            except SpaceError as error:
                reasons.append(str(error))
        return reasons

    def require_points(self) -> None:
        """Raise SpaceError, with the reason, if there is not one config."""
        if self._is_empty(self._search):
            raise SpaceError(self._why_empty())

    @functools.cached_property
    def _search(self) -> Search:
        return Search(self._domains, self._constraints, self._known, self._count_limit)

    @functools.cached_property
    def _count(self) -> int | None:
        try:
            return self._search.count()
        except TooLargeError:
            return None

    @functools.cached_property
    def _estimate(self) -> int:
        return self._search.estimate()

    def _domain(self, name: str, known: Mapping[str, Any]) -> Domain:
        domain = self._domains[name]
        return computed_domain(domain, known) if isinstance(domain, Expression) else domain

    def _config(self, point: Point) -> Config:
        values = dict(zip(self._search.order, point, strict=True))
        return Config(tuple((name, values[name]) for name in self._domains))

    def _drawn(self, count: int, rng: random.Random) -> list[Config]:
        """Draw values until enough of them are points; where hardly any are, search for more."""
        found: dict[Point, None] = {}
        drawn = (self._search.draw(rng) for _ in range((count + 20) * _DRAWS))
        searched = (next(self._search.points(rng)) for _ in range(2 * count))
        for point in itertools.chain(drawn, searched, self._search.points()):
            if len(found) == count:
                break
            if point is not None:
                found[point] = None
        return [self._config(point) for point in found]

    def _why_empty(self) -> str:
        """Return one line that names the fewest constraints that leave nothing, and for what."""
        guilty = list(self._constraints)
        for constraint in self._constraints:
            fewer = [other for other in guilty if other is not constraint]
            # Without it, others may meet values that they cannot be computed for: it is needed.
            with contextlib.suppress(SpaceError):
                if self._is_empty(Search(self._domains, fewer, self._known)):
                    guilty = fewer
        purposes = [rule.purpose for rule in guilty]
        named = {name for rule in guilty for name in rule.names}
        if len(purposes) == 1:
            reason = f"{purposes[0]} leaves nothing"
        elif purposes:
            reason = f"{', '.join(purposes[:-1])} and {purposes[-1]} together leave nothing"
        else:
            values = Search(self._domains, (), self._known).values
            empty = [name for name in values if not values[name]]
            reason = f"{' and '.join(empty) or 'some parameter'} has no values"
            domains = (self._domains[name] for name in empty)
            named.update(*(d.names for d in domains if isinstance(d, Expression)))
        facts = [f"{name}={value!r}" for name, value in self._known.items() if name in named]
        place = " for ".join(
            [f"on {self._known['family']}", *([", ".join(facts)] if facts else [])]
        )
        return f"the space has no config {place}: {reason}"

    @staticmethod
    def _is_empty(search: Search) -> bool:
        return next(search.points(), None) is None
