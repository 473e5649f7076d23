"""What `enable` returns: the way back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

_Self = TypeVar("_Self", bound="Enabled")


class Enabled:
    """Changes that can be taken back: by `disable()`, or by leaving the block of a `with`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        #: How many modules each kind of change has reached.
        self.changed: dict[str, int] = {}

    def add(self, kind: str, undo: Callable[[], object]) -> None:
        """Note a change that was made, and how it is taken back."""
        self._undo.append(undo)
        self.changed[kind] = self.changed.get(kind, 0) + 1

    def disable(self) -> None:
        """Take all changes back, the latest first; a second time there is nothing left to do."""
        while self._undo:
            self._undo.pop()()

    @property
    def active(self) -> bool:
        return bool(self._undo)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disable()

    def __repr__(self) -> str:
        changed = ", ".join(f"{kind}: {count}" for kind, count in self.changed.items())
        state = "active" if self.active else "taken back"
        return f"<{type(self).__name__} {changed or 'nothing changed'} ({state})>"
