"""One level of the search: a parameter's values, given those of the parameters before it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tritune.space.config import SpaceError, Value, check_value, distinct
from tritune.space.expression import FUNCTIONS, Expression, function_of

Domain: TypeAlias = tuple[Value, ...]
#: Values in the order in which parameters are bound; a partial point has the first of them.
Point: TypeAlias = tuple[Value, ...]
#: Names that the target and the problem give values to.
Known: TypeAlias = Mapping[str, Any]


class Level:
    """The last of the bound parameters, with the constraints that can be checked there."""

    def __init__(
        self,
        bound: Sequence[str],
        domain: Domain | Expression,
        constraints: Sequence[Expression],
        known: Known,
    ) -> None:
        *self._before, self._name = bound
        self._domain, self._constraints, self._known = domain, constraints, known
        # As one comprehension over "in", which cannot be the name of a parameter.
        value, each = ast.Name(self._name, ast.Load()), ast.Name(self._name, ast.Store())
        tests = [constraint.tree for constraint in constraints]
        loop = ast.comprehension(each, ast.Name("in", ast.Load()), tests, 0)
        arguments = ["in", *self._before]
        self._filter = function_of(ast.ListComp(value, [loop]), arguments, {**known, **FUNCTIONS})

    def values(self, prefix: Point) -> Sequence[Value]:
        """Return the values that break no constraint after these values of those before."""
        domain = self._domain
        if isinstance(domain, Expression):
            domain = computed_domain(domain, self._known_with(prefix))
        try:
            return self._filter(domain, *prefix) if self._constraints else domain
        except Exception:
            # Find the constraint that cannot be computed; its error names the values.
            known = self._known_with(prefix)
            for value in domain:
                here = {**known, self._name: value}
                all(constraint.value(here) for constraint in self._constraints)
            raise

    def _known_with(self, prefix: Point) -> dict[str, Any]:
        return {**self._known, **dict(zip(self._before, prefix, strict=True))}


def computed_domain(domain: Expression, known: Known) -> Domain:
    """Return the values that an expression gives, without repetitions; SpaceError if it cannot."""
    values = domain.value(known)
    if not isinstance(values, tuple):
        raise SpaceError(f"{domain.purpose} gives {values!r}, not a tuple of values")
    for value in values:
        check_value(domain.purpose, value)
    return distinct(values)
