"""Spaces: parameters, and constraints between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tritune.space.bound import BoundSpace
from tritune.space.config import Config, SpaceError, Value, check_value, has_value
from tritune.space.expression import Expression, suggestion
from tritune.space.parameter import FAMILIES, PLACE_NAMES, Parameter


@dataclass(frozen=True)
class Space:
    """Parameters and constraints; `on` gives the points that they leave on one target.

    A constraint is an expression over parameters, the fields of the problem, `family` and `arch`,
    such as "BLOCK_M * BLOCK_N <= num_warps * 4096". It is left out where a parameter or a limit
    that it names does not exist.
    """

    parameters: tuple[Parameter, ...]
    constraints: tuple[str, ...] = ()
    #: `limits(family, arch)`: names that constraints may use; None for what does not exist there.
    limits: Callable[[str, int | str], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        _ = self._expressions
        for family in FAMILIES:
            names = [parameter.name for parameter in self.parameters_on(family)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise SpaceError(f"declared twice for {family}: {', '.join(twice)}")

    def parameters_on(self, family: str) -> tuple[Parameter, ...]:
        """Return the parameters that exist on a family, in the order of declaration."""
        if family not in FAMILIES:
            raise SpaceError(f"unknown family {family!r}: {suggestion(family, FAMILIES)}")
        return tuple(p for p in self.parameters if family in p.families)

    def on(
        self, family: str, arch: int | str = 0, problem: Mapping[str, Any] | None = None
    ) -> BoundSpace:
        """Return the points on a target for a problem; raise SpaceError if there are none."""
        bound = self._bound(family, arch, problem)
        bound.require_points()
        return bound

    def configs(
        self, family: str, arch: int | str = 0, problem: Mapping[str, Any] | None = None
    ) -> Iterator[Config]:
        """Yield every valid config, in a fixed order."""
        return self.on(family, arch, problem).configs()

    def size(
        self, family: str, arch: int | str = 0, problem: Mapping[str, Any] | None = None
    ) -> int:
        """Return the number of valid configs."""
        return self.on(family, arch, problem).size()

    def check(
        self,
        config: Config,
        family: str,
        arch: int | str = 0,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise SpaceError, with every reason, unless the config is a point of the space."""
        reasons = self._bound(family, arch, problem).objections(config)
        if reasons:
            raise SpaceError(f"not a config of this space ({config}): " + "; ".join(reasons))

    def restricted(self, **values: Value | Iterable[Value]) -> Space:
        """Return the space with fewer values: `restricted(BLOCK_M=(16, 32))`."""
        return Space(
            self.parameters,
            (*self.constraints, *(self._restriction(*entry) for entry in values.items())),
            self.limits,
        )

    def _restriction(self, name: str, values: Value | Iterable[Value]) -> str:
        declared = [p.values for p in self.parameters if p.name == name]
        if not declared:
            names = {p.name for p in self.parameters}
            raise SpaceError(f"no parameter {name} to restrict: {suggestion(name, names)}")
        scalar = isinstance(values, (int, float, str))
        wanted = (values,) if isinstance(values, (int, float, str)) else tuple(values)
        if not scalar and not wanted:
            raise SpaceError(f"{name} is left with no value: give at least one")
        for value in wanted:
            check_value(name, value)
            if not any(isinstance(known, str) or has_value(known, value) for known in declared):
                allowed = " or ".join(str(known) for known in declared)
                raise SpaceError(f"{name}={value!r} is none of {allowed}")
        return f"{name} in {wanted!r}"

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled code cannot be pickled; it is compiled again from the text.
        return Space, (self.parameters, self.constraints, self.limits)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.parameters, self.constraints))

    @functools.cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        return tuple(Expression.parse(c, f"constraint {c!r}") for c in self.constraints)

    def _bound(self, family: str, arch: int | str, problem: Mapping[str, Any] | None) -> BoundSpace:
        domains = {p.name: p.domain for p in self.parameters_on(family)}
        everywhere = {p.name for p in self.parameters}
        fields = dict(problem or {})
        limits = self.limits(family, arch) if self.limits else {}
        clash = sorted(fields.keys() & {*everywhere, *PLACE_NAMES, *limits})
        if clash:
            raise SpaceError(f"the problem has fields named like parameters: {', '.join(clash)}")
        existing = {name: value for name, value in limits.items() if value is not None}
        known = {"family": family, "arch": arch, **existing, **fields}
        rules = []
        for rule in self._expressions:
            _require_names(rule, known.keys() | everywhere | limits.keys())
            if rule.names <= known.keys() | domains.keys():
                rules.append(rule)
        for domain in domains.values():
            if isinstance(domain, Expression):
                _require_names(domain, known.keys() | domains.keys())
        return BoundSpace(domains, rules, known)


def _require_names(expression: Expression, known: Iterable[str]) -> None:
    names = set(known)
    unknown = sorted(expression.names - names)
    if unknown:
        hints = "; ".join(f"{name}: {suggestion(name, names)}" for name in unknown)
        raise SpaceError(f"{expression.purpose} names what is not known here: {hints}")
