"""What `enable` returns: what it changed, what it left, and the way back."""

from __future__ import annotations

from collections.abc import Callable


class Enabled:
    """Changes that can be undone: by `disable()`, or by leaving the block of a `with`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        #: How many modules each kind of change has reached.
        self.changed: dict[str, int] = {}
        #: Of each kind, how many modules were left as they were, by the reason.
        self.left: dict[str, dict[str, int]] = {}

    def add(self, kind: str, undo: Callable[[], object], modules: int = 1) -> None:
        """Note a change that was made, and how it is undone."""
        self._undo.append(undo)
        self.changed[kind] = self.changed.get(kind, 0) + modules

    def leave(self, kind: str, reason: str) -> None:
        """Note a module that was left as it was, and why."""
        reasons = self.left.setdefault(kind, {})
        reasons[reason] = reasons.get(reason, 0) + 1

    def describe(self) -> str:
        """Return a line for each kind: how many layers use tritune, how many are left, and why."""
        lines = []
        for kind in {**self.changed, **self.left}:
            reasons = self.left.get(kind, {})
            left = "".join(f", {count} left ({why})" for why, count in reasons.items())
            lines.append(f"{kind}: {self.changed.get(kind, 0)} served{left}")
        return "\n".join(lines) or "nothing to serve"

    def disable(self) -> None:
        """Undo all changes, the latest first; a second time there is nothing left to do."""
        while self._undo:
            self._undo.pop()()

    @property
    def active(self) -> bool:
        return bool(self._undo)

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()

    def __repr__(self) -> str:
        changed = ", ".join(f"{kind}: {count}" for kind, count in self.changed.items())
        left = ", ".join(f"{kind}: {sum(why.values())}" for kind, why in self.left.items())
        state = "active" if self.active else "taken back"
        return f"<Enabled {changed or 'nothing changed'}{left and f'; left: {left}'} ({state})>"
