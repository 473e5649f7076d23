"""The digest of a Triton function's code: its source, the constants it reads, all that it calls.

Triton's own `cache_key` will not do. In Triton 3.7 it depends on what the process has hashed
before: a constant that a helper function reads is part of the caller's key only if the helper's
key was computed first.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeAlias

from triton.language.core import constexpr
from triton.runtime.jit import BoundConstexprFunction, JITCallable

#: Attributes read of a name, of those attributes, and so on.
Reads: TypeAlias = "dict[str, Reads]"

#: Packages that are the same in every process with this Python, and quick to have there.
_SHARED = {*sys.stdlib_module_names, "triton", "torch", "numpy", "tritune"} - {"__main__"}


def code_digest(function: Any) -> str:
    """Return a digest that is the same in every process, wherever in its file the function is."""
    digest = hashlib.sha256()
    for part in _parts(function, {}):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def global_reads(function: Any) -> Reads:
    """Return the names outside itself that a Triton function reads, with the attributes of each.

    A name that is also assigned in the function is a local variable. Triton's cache key takes it
    for a global while it has not seen the assignment, but only a few kinds of values enter the key.
    """
    scope = function.get_capture_scope()
    reads, assigned = _read_names(function.parse())
    return {
        name: attributes
        for name, attributes in reads.items()
        if name in scope
        and (name not in assigned or isinstance(scope[name], (JITCallable, constexpr)))
    }


def is_shared(module_name: str) -> bool:
    """Return whether a module is best imported where it is needed, whatever is used of it."""
    return module_name.partition(".")[0] in _SHARED


def _parts(function: Any, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(function, BoundConstexprFunction):
        function = function.__func__
    if id(function) in seen:
        yield f"function {seen[id(function)]}"
        return
    seen[id(function)] = len(seen)
    yield function.src
    yield f"noinline={bool(getattr(function, 'noinline', False))}"
    scope = function.get_capture_scope()
    for name, attributes in sorted(global_reads(function).items()):
        yield from _value_parts(name, scope[name], attributes, seen)


def _value_parts(name: str, value: Any, reads: Reads, seen: dict[int, int]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        # Of Triton itself, the version counts.
        if not is_shared(value.__name__):
            for attribute in sorted(reads):
                inner = getattr(value, attribute, None)
                yield from _value_parts(f"{name}.{attribute}", inner, reads[attribute], seen)
    elif isinstance(value, JITCallable):
        if not is_shared(str(getattr(value, "__module__", ""))):
            yield name
            yield from _parts(value, seen)
    elif isinstance(value, constexpr):
        yield f"{name}={value.value!r}"
    elif isinstance(value, (bool, int, float, str)):
        yield f"{name}={value!r}"


def _read_names(tree: ast.AST) -> tuple[Reads, set[str]]:
    """Return the names that code reads, with the attributes it reads of them, and those that it
    assigns.
    """
    reads: Reads = {}
    assigned: set[str] = set()

    def visit(node: ast.AST) -> Reads | None:
        """Return what is read of this node, if it is a name or an attribute of one."""
        found: Reads | None = None
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                found = reads.setdefault(node.id, {})
            else:
                assigned.add(node.id)
        elif isinstance(node, ast.Attribute):
            owner = visit(node.value)
            return None if owner is None else owner.setdefault(node.attr, {})
        elif isinstance(node, ast.arg):
            assigned.add(node.arg)
        for child in ast.iter_child_nodes(node):
            visit(child)
        return found

    visit(tree)
    return reads, assigned
