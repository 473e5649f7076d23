"""Which names a function's code looks up outside itself, and which objects have a name that any
process can import.
"""

from __future__ import annotations

import ast
import dis
import importlib
import sys
from types import CodeType, ModuleType
from typing import Any, TypeAlias

#: Attributes read of a name, of those attributes, and so on.
Reads: TypeAlias = "dict[str, Reads]"

#: Packages that are the same in every process with this Python, and quick to have there.
_SHARED = {*sys.stdlib_module_names, "triton", "torch", "numpy", "tritune"} - {"__main__"}


def read_names(tree: ast.AST) -> tuple[Reads, set[str]]:
    """Return the names that Triton code reads, with the attributes it reads of them, and those that
    it assigns.
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


def global_names(code: CodeType) -> set[str]:
    """Return the globals that Python code reads, in the functions inside it too."""
    names = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= global_names(constant)
    return names


def is_shared(module_name: str) -> bool:
    """Return whether a module is best imported where it is needed, whatever is used of it."""
    return module_name.partition(".")[0] in _SHARED


def module_is_importable(module: ModuleType) -> bool:
    """Return whether another process that imports the module's name gets this module's file."""
    name = module.__name__
    if name == "__main__" or sys.modules.get(name) is not module:
        return False
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    if "." in name and (path is None or parent is None or not module_is_importable(parent)):
        return False
    # Not importlib.util.find_spec: it believes whoever has put the module into sys.modules.
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    spec = next((each for each in specs if each is not None), None)
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or spec.origin in (file, "built-in", "frozen"))


def import_name(thing: Any) -> tuple[str, int] | None:
    """ "package.module:name" of a class, function or kernel, and how many decorators to take off
    what that names; None where no other process could import it.
    """
    module = sys.modules.get(str(getattr(thing, "__module__", None)))
    path = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if module is None or not isinstance(path, str) or "<" in path:
        return None
    if not module_is_importable(module):
        return None
    name = f"{module.__name__}:{path}"
    try:
        found = imported(name)
    except AttributeError:
        return None
    for wrappers in range(8):
        if found is thing:
            return name, wrappers
        found = getattr(found, "fn", None)
    return None


def imported(name: str, wrappers: int = 0) -> Any:
    """Return what `import_name` named."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    for _ in range(wrappers):
        found = found.fn
    return found
