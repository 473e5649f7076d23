"""A depth-first search over the points of a space, pruned by its constraints.

Parameters are bound in the order of declaration, except that one with a computed domain comes after
those that its domain names. A constraint is checked as soon as its last name is bound. How a
partial point can be completed depends on few of its values: those that constraints and domains of
later parameters name. So it is counted once for each combination of these.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tritune.space.config import SpaceError, Value, distinct, has_value
from tritune.space.expression import Expression
from tritune.space.level import Domain, Known, Level, Point, computed_domain
from tritune.space.listed import in_order

#: Partial points that are visited before counting gives up: a few seconds of work.
COUNT_LIMIT = 1_000_000
#: Random descents that an estimate is the mean of.
_DESCENTS = 2_000
#: Combinations of values that a domain may depend on.
_DOMAIN_LIMIT = 100_000


class TooLargeError(Exception):
    """Raised where counting would take too long; never leaves this package."""


class Search:
    """The points of a space on one target for one problem."""

    def __init__(
        self,
        domains: Mapping[str, Domain | Expression],
        constraints: Iterable[Expression],
        known: Known,
        limit: int = COUNT_LIMIT,
    ) -> None:
        self._left_to_visit = limit
        #: False where what is known breaks a constraint by itself.
        self._possible = True
        left = {
            name: computed_domain(domain, known)
            if isinstance(domain, Expression) and domain.names <= known.keys()
            else domain
            for name, domain in domains.items()
        }
        #: The constraints on several parameters, with the names of these.
        shared: list[tuple[Expression, frozenset[str]]] = []
        for constraint in constraints:
            names = constraint.names - known.keys()
            name = next(iter(names), "")
            domain = left.get(name)
            if not name:
                self._possible &= bool(constraint.value(known))
            elif len(names) == 1 and isinstance(domain, tuple):
                # A constraint on one parameter is a smaller domain.
                left[name] = tuple(Level([name], domain, [constraint], known).values(()))
            else:
                shared.append((constraint, names))
        needs = {
            name: domain.names - known.keys() if isinstance(domain, Expression) else frozenset()
            for name, domain in left.items()
        }
        #: Parameters in the order in which they are bound.
        self.order = _binding_order(needs)
        values: dict[str, Domain] = {}
        for name in self.order:
            values[name] = _all_values(left[name], sorted(needs[name]), values, known)
        #: Every value that a parameter can take, by parameters in the order of declaration.
        self.values = {name: values[name] for name in domains}
        self._levels, self._live = [], []
        for depth, name in enumerate(self.order):
            before, bound = self.order[:depth], self.order[: depth + 1]
            mine = [c for c, names in shared if name in names and names <= {*bound}]
            self._levels.append(Level(bound, left[name], mine, known))
            later = [names for _, names in shared if not names <= {*before}]
            used = frozenset().union(*later, *(needs[other] for other in self.order[depth:]))
            #: By depth: the places of the values that what comes later names.
            self._live.append([place for place, other in enumerate(before) if other in used])
        self._live.append([])
        #: By depth: how many points complete a partial one, by its live values.
        self._counts: list[dict[Point, int]] = [{} for _ in self._levels]

    def points(self, rng: random.Random | None = None) -> Iterator[Point]:
        """Yield all points lazily, in a fixed order or in a random one."""
        return self._complete((), rng) if self._possible else iter(())

    def count(self) -> int:
        """Return the number of points; TooLargeError where that would take too long."""
        return self._count(()) if self._possible else 0

    def point(self, number: int) -> Point:
        """Return the point with this number, from 0 to count() - 1."""
        prefix: Point = ()
        for level in self._levels:
            for value in level.values(prefix):
                count = self._count((*prefix, value))
                if number < count:
                    prefix = (*prefix, value)
                    break
                number -= count
        return prefix

    def estimate(self) -> int:
        """Return about how many points there are: the mean of what random descents suggest."""
        rng = random.Random(0)
        return max(1, round(sum(self._descend(rng) for _ in range(_DESCENTS)) / _DESCENTS))

    def draw(self, rng: random.Random) -> Point | None:
        """Draw values: each point has the same chance; None where they are no point."""
        prefix: Point = ()
        for name, level in zip(self.order, self._levels, strict=True):
            value = rng.choice(self.values[name])
            if not has_value(level.values(prefix), value):
                return None
            prefix = (*prefix, value)
        return prefix

    def _complete(self, prefix: Point, rng: random.Random | None) -> Iterator[Point]:
        depth = len(prefix)
        if depth == len(self._levels):
            yield prefix
            return
        key = self._key(prefix)
        if self._counts[depth].get(key) == 0:
            return
        values = self._levels[depth].values(prefix)
        none = True
        for value in values if rng is None else rng.sample(values, len(values)):
            for point in self._complete((*prefix, value), rng):
                none = False
                yield point
        if none:
            # The same live values need no second search.
            self._counts[depth][key] = 0

    def _count(self, prefix: Point) -> int:
        depth = len(prefix)
        if depth == len(self._levels):
            return 1
        key = self._key(prefix)
        count = self._counts[depth].get(key)
        if count is None:
            self._left_to_visit -= 1
            if self._left_to_visit < 0:
                raise TooLargeError
            values = self._levels[depth].values(prefix)
            if depth in self._live[depth + 1]:
                count = sum(self._count((*prefix, value)) for value in values)
            else:
                count = len(values) * self._count((*prefix, values[0])) if values else 0
            self._counts[depth][key] = count
        return count

    def _descend(self, rng: random.Random) -> int:
        """Return the product of the numbers of values at each level of a random descent."""
        prefix: Point = ()
        ways = 1
        for level in self._levels:
            values = level.values(prefix)
            if not values:
                return 0
            ways *= len(values)
            prefix = (*prefix, rng.choice(values))
        return ways

    def _key(self, prefix: Point) -> Point:
        return tuple([prefix[place] for place in self._live[len(prefix)]])


def _binding_order(needs: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the parameters, each after those that its domain names."""
    order: list[str] = []

    def bind(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            circle = " -> ".join([*above[above.index(name) :], name])
            raise SpaceError(f"domains depend on each other in a circle: {circle}")
        if name not in order:
            for other in sorted(needs[name]):
                bind(other, (*above, name))
            order.append(name)

    for name in needs:
        bind(name, ())
    return order


def _all_values(
    domain: Domain | Expression,
    needed: Sequence[str],
    values: Mapping[str, Domain],
    known: Known,
) -> Domain:
    """Return every value of a domain, whatever those are that it depends on."""
    if isinstance(domain, tuple):
        return domain
    if math.prod(len(values[other]) for other in needed) > _DOMAIN_LIMIT:
        raise SpaceError(
            f"{domain.purpose} depends on too many values: "
            "let it depend on fewer parameters, and say the rest in a constraint"
        )
    found: list[Value] = []
    for chosen in itertools.product(*(values[other] for other in needed)):
        # Where it cannot be computed a constraint may forbid the choice; if not, the search fails.
        with contextlib.suppress(SpaceError):
            here = {**known, **dict(zip(needed, chosen, strict=True))}
            found += computed_domain(domain, here)
    return in_order(distinct(found))
