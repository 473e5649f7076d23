"""Acting on a module once the program imports it, without importing it for the program."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Does something with a module; returns the way back.
Action = Callable[[ModuleType], Callable[[], None]]


def when_imported(name: str, action: Action) -> Callable[[], None]:
    """Call `action` with the module `name`: now if it is there, else when it is imported.

    What is returned ends the wait, or takes the action back.
    """
    module = sys.modules.get(name)
    if module is not None:
        return action(module)
    watcher = _Watcher(name, action)
    sys.meta_path.insert(0, watcher)
    return watcher.take_back


class _Watcher(MetaPathFinder):
    """Finds no module itself; has what others find call the action behind it."""

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self.action = action
        self.looking = False
        self.undo: Callable[[], None] | None = None

    def end(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def take_back(self) -> None:
        self.end()
        if self.undo is not None:
            self.undo()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_act(module: ModuleType) -> None:
            execute(module)
            self.end()
            self.undo = self.action(module)

        spec.loader.exec_module = and_act  # type: ignore[method-assign]
        return spec
