"""What is left of an expression when some of its names are known.

`fold_condition` and `fold_value` compute what the known names decide. `Partial` goes further: it
writes the expression whose value is *all that the rest of the search needs to know* about the names
decided so far. For "A * B * C <= 4096" with A and B decided that is the product of the two; whoever
has the same product has the same future, whatever A and B are.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tritune.space.expression import FUNCTIONS, function_of, names_in

_FALSE = ast.Constant(False)
_TRUE = ast.Constant(True)
_FOLDABLE = (int, float, bool, str, type(None))


def fold_condition(tree: ast.expr, known: Mapping[str, Any]) -> ast.expr:
    """A condition as true as before, with what `known` decides computed and left out."""
    return _Fold(known).condition(tree)


def fold_value(tree: ast.expr, known: Mapping[str, Any]) -> ast.expr:
    """The same value, with what `known` decides computed."""
    return _Fold(known).value(tree)


def rebuilt(node: ast.expr, change: Callable[[ast.expr], ast.expr]) -> ast.expr:
    """A copy of a node in which every part is changed; the node itself stays as it is."""

    def part(old: Any) -> Any:
        if isinstance(old, list):
            return [part(item) for item in old]
        return change(old) if isinstance(old, ast.expr) else old

    return type(node)(**{name: part(old) for name, old in ast.iter_fields(node)})


class _Fold:
    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def condition(self, node: ast.expr) -> ast.expr:
        """The same truth, though maybe not the same value."""
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            sides = [node.left, *node.comparators]
            links = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(node.ops)]
            node = ast.BoolOp(ast.And(), list(links))
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(part) for part in node.values]
            return _joined(node.op, parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inside = self.condition(node.operand)
            if isinstance(inside, ast.Constant):
                return ast.Constant(not inside.value)
            return ast.UnaryOp(node.op, inside)
        if isinstance(node, ast.IfExp):
            test = self.condition(node.test)
            if isinstance(test, ast.Constant):
                return self.condition(node.body if test.value else node.orelse)
            return ast.IfExp(test, self.condition(node.body), self.condition(node.orelse))
        return self.value(node)

    def value(self, node: ast.expr) -> ast.expr:
        """The same value."""
        if isinstance(node, ast.Constant):
            return node
        if names_in(node) <= self.known.keys():
            return self._computed(node)
        if isinstance(node, ast.IfExp):
            test = self.condition(node.test)
            if isinstance(test, ast.Constant):
                return self.value(node.body if test.value else node.orelse)
        if isinstance(node, ast.Call):
            return ast.Call(node.func, [self.value(argument) for argument in node.args], [])
        return rebuilt(node, self.value)

    def _computed(self, node: ast.expr) -> ast.expr:
        try:
            value = function_of(node, (), {**self.known, **FUNCTIONS})()
        except Exception:
            # It may stand where it is never looked at; if not, it fails there, with its names.
            return node
        items = value if isinstance(value, tuple) else (value,)
        return ast.Constant(value) if all(type(i) in _FOLDABLE for i in items) else node


def _joined(op: ast.boolop, parts: list[ast.expr]) -> ast.expr:
    """Parts that cannot change the outcome left out, and none after one that decides it."""
    decisive = isinstance(op, ast.Or)
    kept: list[ast.expr] = []
    for part in parts:
        if not isinstance(part, ast.Constant):
            kept.append(part)
        elif bool(part.value) == decisive:
            return ast.Constant(decisive)
    if not kept:
        return ast.Constant(not decisive)
    return kept[0] if len(kept) == 1 else ast.BoolOp(op, kept)


class Partial:
    """Writes down what the decided names mean for the rest; all other names are still open."""

    def __init__(self, decided: Collection[str], open_names: Collection[str]) -> None:
        self._decided = frozenset(decided)
        self._open = frozenset(open_names)

    def decision(self, node: ast.expr) -> ast.expr:
        """Of a condition: False or True where it is decided, else a tuple of what matters."""
        if self._is_decided(node):
            return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node))
        if isinstance(node, ast.BoolOp):
            return self._all_or_any(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _call("_not", [self.decision(node.operand)])
        if isinstance(node, ast.IfExp) and self._is_decided(node.test):
            branches = [self.decision(node.body), self.decision(node.orelse)]
            return self._either(node.test, branches)
        return _tuple([self.remainder(node)])

    def remainder(self, node: ast.expr) -> ast.expr:
        """Of a value: the value where it is decided, else a tuple of what matters."""
        if self._is_decided(node):
            return node
        if not names_in(node) & self._decided:
            return ast.Constant(None)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            merge = "_sum" if isinstance(node.op, ast.Add) else "_product"
            return self._merged(_operands(node, type(node.op)), merge)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("min", "max") and len(node.args) > 1:
                return self._merged(node.args, f"_{node.func.id}")
            return _tuple([self.remainder(argument) for argument in node.args])
        if isinstance(node, ast.IfExp) and self._is_decided(node.test):
            branches = [self.remainder(node.body), self.remainder(node.orelse)]
            return self._either(node.test, branches)
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return _tuple([self.remainder(child) for child in children])

    def _is_decided(self, node: ast.expr) -> bool:
        return not names_in(node) & self._open

    def _all_or_any(self, node: ast.BoolOp) -> ast.expr:
        decided = [part for part in node.values if self._is_decided(part)]
        others = [self.decision(part) for part in node.values if not self._is_decided(part)]
        rest = _call("_all" if isinstance(node.op, ast.And) else "_any", others)
        if not decided:
            return rest
        test = decided[0] if len(decided) == 1 else ast.BoolOp(node.op, decided)
        if isinstance(node.op, ast.And):
            return ast.IfExp(test, rest, _FALSE)
        return ast.IfExp(test, _TRUE, rest)

    def _either(self, test: ast.expr, branches: list[ast.expr]) -> ast.expr:
        """What is left of one of two branches, and of which: they may look alike."""
        first, second = (
            _call("_branch", [ast.Constant(name), branch])
            for name, branch in zip(("first", "second"), branches, strict=True)
        )
        return ast.IfExp(test, first, second)

    def _merged(self, operands: list[ast.expr], merge: str) -> ast.expr:
        """The decided operands as one value: in which order they come makes no difference."""
        decided = [operand for operand in operands if self._is_decided(operand)]
        others = [operand for operand in operands if not self._is_decided(operand)]
        return _tuple([_call(merge, decided), *(self.remainder(other) for other in others)])


def _operands(node: ast.expr, op: type[ast.operator]) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, op):
        return _operands(node.left, op) + _operands(node.right, op)
    return [node]


def _tuple(items: list[ast.expr]) -> ast.expr:
    return ast.Tuple(items, ast.Load())


def _call(name: str, arguments: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), arguments, [])


def _all(*parts: Any) -> Any:
    if any(part is False for part in parts):
        return False
    # Those that hold keep their places: which ones are still open makes a difference.
    return True if all(part is True for part in parts) else parts


def _any(*parts: Any) -> Any:
    if any(part is True for part in parts):
        return True
    return False if all(part is False for part in parts) else parts


def _branch(name: str, left: Any) -> Any:
    """A branch that is decided is its value; an open one has to say which it is."""
    return (name, left) if left is None or isinstance(left, tuple) else left


def _not(part: Any) -> Any:
    return not part if isinstance(part, bool) else part


def _merging(merge: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
    def merged(*values: Any) -> Any:
        # With floats the order of operations matters after all.
        return merge(values) if all(isinstance(v, int) for v in values) and values else values

    return merged


#: What the expressions of `Partial` call.
RUNTIME: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "_all": _all,
    "_any": _any,
    "_not": _not,
    "_branch": _branch,
    "_sum": _merging(sum),
    "_product": _merging(math.prod),
    "_min": _merging(min),
    "_max": _merging(max),
}
