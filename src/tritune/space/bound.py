"""A space on one target for one problem: the points that its constraints leave."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritune.space.config import Config, SpaceError, Value, has_value
from tritune.space.conflict import why_empty
from tritune.space.expression import Expression, suggestion
from tritune.space.plan import Domain, Plan, domain_values
from tritune.space.solver import COUNT_LIMIT, Solution, Solver, TooLargeError

#: How often values are drawn for each config that is wanted of a space too large to count.
_DRAWS = 1_000


class BoundSpace:
    """Points that are solved for: none but the valid ones are ever built."""

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
        return self._plan.values

    @property
    def size_is_exact(self) -> bool:
        """Whether `size` is a count and not an estimate."""
        return self._count is not None

    def size(self) -> int:
        """How many configs there are; an estimate where there are too many ways to count them."""
        return self._estimate if self._count is None else self._count

    def configs(self) -> Iterator[Config]:
        return map(self._config, self._solver.solutions())

    def sample(self, count: int, rng: random.Random) -> list[Config]:
        if self._count is None:
            return self._drawn(count, rng)
        count = min(count, self._count)
        if self._count <= sys.maxsize:
            numbers = rng.sample(range(self._count), count)
        else:
            chosen: dict[int, None] = {}
            while len(chosen) < count:
                chosen[rng.randrange(self._count)] = None
            numbers = list(chosen)
        return [self._config(self._solver.solution(number)) for number in numbers]

    def neighbours(self, config: Config) -> list[Config]:
        values = config.as_kwargs()
        if values.keys() != self._domains.keys():
            return []
        valid = config in self
        known = {**self._known, **values}
        found = []
        for axis, (name, here) in enumerate((name, values[name]) for name in self._domains):
            domain = self._domain(name, known)
            place_here = next((p for p, v in enumerate(domain) if has_value((here,), v)), None)
            for place, value in enumerate(domain):
                if place == place_here:
                    continue
                known[name] = value
                if self._holds(known, name if valid else None):
                    distance = 1 if place_here is None else abs(place - place_here)
                    point = Config(tuple((other, known[other]) for other in self._domains))
                    found.append((distance, axis, place, point))
            known[name] = here
        return [point for *_, point in sorted(found, key=lambda entry: entry[:3])]

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and not self.objections(config)

    def objections(self, config: Config) -> list[str]:
        """Every reason why the config is not one of the points."""
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
        return reasons or self._broken(known)

    def require_points(self) -> None:
        """Raise SpaceError, with the reason, if there is not one config."""
        if next(self._solver.solutions(), None) is None:
            raise SpaceError(why_empty(self._domains, self._constraints, self._known))

    @functools.cached_property
    def _plan(self) -> Plan:
        return Plan(self._domains, self._constraints, self._known)

    @functools.cached_property
    def _solver(self) -> Solver:
        return Solver(self._plan, self._count_limit)

    @functools.cached_property
    def _count(self) -> int | None:
        try:
            return self._solver.count()
        except TooLargeError:
            return None

    @functools.cached_property
    def _estimate(self) -> int:
        return self._solver.estimate()

    @functools.cached_property
    def _touched(self) -> dict[str | None, tuple[list[Expression], list[str]]]:
        """What a parameter's value matters to: constraints, and parameters by their domains."""
        computed = {n: d.names for n, d in self._domains.items() if isinstance(d, Expression)}
        touched: dict[str | None, tuple[list[Expression], list[str]]] = {
            name: (
                [rule for rule in self._constraints if name in rule.names],
                [other for other, needed in computed.items() if name in needed],
            )
            for name in self._domains
        }
        return {**touched, None: (list(self._constraints), list(self._domains))}

    def _holds(self, known: Mapping[str, Any], changed: str | None) -> bool:
        """Whether values make a point, where all that may be wrong comes from the changed one."""
        rules, names = self._touched[changed]
        try:
            return all(rule.value(known) for rule in rules) and all(
                has_value(self._domain(name, known), known[name]) for name in names
            )
        except SpaceError:
            return False

    def _broken(self, known: Mapping[str, Any]) -> list[str]:
        """The constraints that do not hold, or cannot be computed."""
        broken = []
        for rule in self._constraints:
            try:
                if not rule.value(known):
                    broken.append(f"{rule.purpose} does not hold")
            except SpaceError as error:
                broken.append(str(error))
        return broken

    def _domain(self, name: str, known: Mapping[str, Any]) -> Domain:
        domain = self._domains[name]
        if isinstance(domain, Expression):
            return domain_values(domain, domain.value(known))
        return domain

    def _config(self, solution: Solution) -> Config:
        return Config(tuple(zip(self._domains, solution, strict=True)))

    def _drawn(self, count: int, rng: random.Random) -> list[Config]:
        """Values are drawn until enough fit; where hardly any do, the rest is looked for."""
        found: dict[Solution, None] = {}
        for _ in range((count + 20) * _DRAWS):
            if len(found) == count:
                break
            solution = self._solver.draw(rng)
            if solution is not None:
                found[solution] = None
        looked_for = (self._solver.any_solution(rng) for _ in range(2 * count))
        for solution in itertools.chain(looked_for, self._solver.solutions()):
            if len(found) == count:
                break
            found[solution] = None
        return [self._config(solution) for solution in found]
