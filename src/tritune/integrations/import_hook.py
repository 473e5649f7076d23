"""A post-import hook: acts on a module once the program imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Changes a module; returns the function that undoes it.
Action = Callable[[ModuleType], Callable[[], None]]


def when_imported(name: str, action: Action) -> Callable[[], None]:
    """Call `action` with the module `name`: now if it is there, else when it is imported.

    Returns a function that removes the hook, or undoes the action.
    """
    module = sys.modules.get(name)
    if module is not None:
        return action(module)
    hook = _PostImportHook(name, action)
    sys.meta_path.insert(0, hook)
    return hook.undo


class _PostImportHook(MetaPathFinder):
    """Finds no module itself; has the loader that others find call the action."""

    def __init__(self, name: str, action: Action) -> None:
        self._name, self._action = name, action
        self._searching = False
        self._undo_action: Callable[[], None] | None = None

    def undo(self) -> None:
        self._remove()
        if self._undo_action is not None:
            self._undo_action()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._remove()
            self._undo_action = self._action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
