"""One level of the search: a parameter's values, given those of the parameters before it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tritune.space.config import SpaceError, Value, check_value
from tritune.space.expression import FUNCTIONS, Expression, function_of, names_in

Domain: TypeAlias = tuple[Value, ...]
#: Values in the order in which parameters are bound; a partial point has the first of them.
Point: TypeAlias = tuple[Value, ...]
#: Names that the target and the problem give values to.
Known: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Condition:
    """A constraint after constant folding, and the parameters that it still depends on."""

    constraint: Expression
    tree: ast.expr
    names: frozenset[str]

    @staticmethod
    def of(constraint: Expression, known: Known) -> Condition:
        tree = _folded(constraint.tree, known)
        return Condition(constraint, tree, names_in(tree) - known.keys())


class Level:
    """The last of the bound parameters, with the constraints that can be checked there."""

    def __init__(
        self,
        bound: Sequence[str],
        domain: Domain | Expression,
        conditions: Sequence[Condition],
        known: Known,
    ) -> None:
        *self._before, self._name = bound
        self._domain, self._conditions, self._known = domain, conditions, known
        # As one comprehension over "in", which cannot be the name of a parameter.
        value, each = ast.Name(self._name, ast.Load()), ast.Name(self._name, ast.Store())
        tests = [condition.tree for condition in conditions]
        loop = ast.comprehension(each, ast.Name("in", ast.Load()), tests, 0)
        arguments = ["in", *self._before]
        self._filter = function_of(ast.ListComp(value, [loop]), arguments, {**known, **FUNCTIONS})

    def values(self, prefix: Point) -> Sequence[Value]:
        """Return the values that break no constraint after these values of those before."""
        domain = self._domain
        if isinstance(domain, Expression):
            domain = computed_domain(domain, self._known_with(prefix))
        try:
            return self._filter(domain, *prefix) if self._conditions else domain
        except Exception:
            # Find the constraint that cannot be computed; its error names the values.
            known = self._known_with(prefix)
            for value in domain:
                here = {**known, self._name: value}
                all(condition.constraint.value(here) for condition in self._conditions)
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
    return tuple({(type(value), value): value for value in values}.values())


def _folded(node: ast.expr, known: Known) -> ast.expr:
    """Fold constants: return an equivalent condition without parts that known names decide."""
    if names_in(node) <= known.keys():
        try:
            return ast.Constant(bool(function_of(node, (), {**known, **FUNCTIONS})()))
        except Exception:
            # It may never be evaluated; if it is, the error names its values.
            return node
    if isinstance(node, ast.BoolOp):
        decisive = isinstance(node.op, ast.Or)
        parts = [_folded(part, known) for part in node.values]
        rest = [part for part in parts if not isinstance(part, ast.Constant)]
        if any(isinstance(part, ast.Constant) and part.value == decisive for part in parts):
            return ast.Constant(decisive)
        return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inside = _folded(node.operand, known)
        if isinstance(inside, ast.Constant):
            return ast.Constant(not inside.value)
        return ast.UnaryOp(node.op, inside)
    if isinstance(node, ast.IfExp):
        test = _folded(node.test, known)
        if isinstance(test, ast.Constant):
            return _folded(node.body if test.value else node.orelse, known)
    return node
