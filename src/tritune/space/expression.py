"""Expressions over parameters and problems: a small, safe part of Python, compiled once.

Allowed are names, numbers, text, tuples, comparisons, `in`, `and`, `or`, `not`, arithmetic,
`a if b else c`, and the functions in FUNCTIONS. Nothing else is, so that a space may come from a
file that somebody else wrote.
"""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tritune.space.config import SpaceError


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from `low` to `high`, both included."""
    return tuple(1 << n for n in range(max(int(high), 0).bit_length()) if 1 << n >= low)


def integers(low: int, high: int, step: int = 1) -> tuple[int, ...]:
    """Return `low`, `low + step` and so on up to `high`, which is included."""
    return tuple(range(low, high + 1, step))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "len": len,
    "integers": integers,
    "powers_of_two": powers_of_two,
}

_ALLOWED = (
    *(ast.Name, ast.Load, ast.Tuple, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.IfExp, ast.Call, ast.Constant),
)
_ALLOWED_TEXT = (
    "names, numbers, text, tuples, comparisons, in, and, or, not, arithmetic, "
    f"'a if b else c', and the functions {', '.join(FUNCTIONS)}"
)


@dataclass(frozen=True, eq=False)
class Expression:
    """An expression with its purpose for messages, such as "constraint 'A < B'"."""

    purpose: str
    tree: ast.expr
    names: frozenset[str]

    @staticmethod
    def parse(text: str, purpose: str) -> Expression:
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            reason = getattr(error, "msg", str(error))
            raise SpaceError(f"{purpose} is not an expression: {reason}") from None
        tree = _ListsAsTuples().visit(tree)
        _check(tree, purpose)
        return Expression(purpose, tree, names_in(tree))

    def value(self, known: Mapping[str, Any]) -> Any:
        """Return its value, with every name found in `known`; SpaceError where it has none."""
        function, names = self._compiled
        try:
            return function(*[known[name] for name in names])
        except Exception as error:
            given = ", ".join(f"{name}={known[name]!r}" for name in names if name in known)
            raise SpaceError(
                f"{self.purpose} cannot be computed for {given or 'anything'}: {error}"
            ) from None

    @functools.cached_property
    def _compiled(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        names = tuple(sorted(self.names))
        return function_of(self.tree, names, FUNCTIONS), names


def function_of(
    tree: ast.expr, arguments: Iterable[str], names: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function of the arguments that computes the expression, with other `names` known."""
    parameters = ast.arguments([], [ast.arg(name) for name in arguments], None, [], [], None, [])
    body = ast.Expression(ast.Lambda(parameters, tree))
    code = compile(ast.fix_missing_locations(body), "<space>", "eval")
    function: Callable[..., Any] = eval(code, {"__builtins__": {}, **names})
    return function


def names_in(tree: ast.AST) -> frozenset[str]:
    """Return the names that stand for values, not for functions."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(found - FUNCTIONS.keys())


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint: the known name nearest to this one, or all of them."""
    names = sorted(known)
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"did you mean {by_lower[near[0]]}?"
    return f"known are {', '.join(names) or 'none'}"


class _ListsAsTuples(ast.NodeTransformer):
    def visit_List(self, node: ast.List) -> ast.expr:
        return ast.Tuple([self.visit(item) for item in node.elts], node.ctx)


def _check(tree: ast.expr, purpose: str) -> None:
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        problem = _problem(node, id(node) in functions)
        if problem:
            raise SpaceError(f"{purpose}: {problem}; allowed are {_ALLOWED_TEXT}")


def _problem(node: ast.AST, is_function: bool) -> str | None:
    if not isinstance(node, _ALLOWED) or isinstance(node, (ast.MatMult, ast.Is, ast.IsNot)):
        what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        return f"{what!r} is not allowed"
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
        if not named or node.keywords:
            return f"the call {ast.unparse(node)!r} is not allowed"
    if isinstance(node, ast.Name) and not is_function and node.id in FUNCTIONS:
        return f"{node.id} is a function"
    if isinstance(node, ast.Constant) and not isinstance(
        node.value, (int, float, bool, str, type(None))
    ):
        return f"{node.value!r} is not allowed"
    return None
