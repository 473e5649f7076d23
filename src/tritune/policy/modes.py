"""The modes in which a process chooses configs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tritune import env
from tritune.errors import TrituneError
from tritune.policy.sources import PolicySource, StoreSource


class ModeError(TrituneError):
    """Raised for a mode that does not exist, or lacks what it needs."""


@dataclass(frozen=True)
class Mode:
    """A mode, and the reviewed file that it answers from, if any."""

    name: str = "default"
    pinned: str | None = None

    def __post_init__(self) -> None:
        if self.name not in env.MODES:
            raise ModeError(f"mode {self.name!r}, allowed: {', '.join(env.MODES)}")
        if self.name == "pinned" and self.pinned is None:
            raise ModeError(
                "mode 'pinned' needs the reviewed file: give its path as pinned=..., or in "
                f"{env.PINNED.name}; `tritune db export --winners -o FILE` writes one"
            )
        if self.name not in ("pinned", "serve") and self.pinned is not None:
            raise ModeError(f"mode {self.name!r} reads no reviewed file: pinned and serve do")


def mode_named(name: str, pinned: str | os.PathLike[str] | None = None) -> Mode:
    """Return the mode that was asked for; the file is TRITUNE_PINNED where none is given."""
    path = None if pinned is None else os.fspath(pinned)
    if path is None and name in ("pinned", "serve"):
        path = env.PINNED.read()
    return Mode(name, path)


def from_environment() -> Mode:
    """Return the mode that TRITUNE_MODE and TRITUNE_PINNED ask for."""
    try:
        return mode_named(env.MODE.read() or "default")
    except ValueError as error:
        raise ModeError(str(error)) from None


def source_of(mode: Mode) -> PolicySource:
    """Return the source of a mode's answers."""
    if mode.pinned is None:
        return StoreSource()
    from tritune.policy.pinned import PinnedSource

    return PinnedSource(mode.pinned)


def background_of(mode: Mode) -> Any:
    """Return what makes the thread of modes that record problems; None for the others."""
    return hook("background") if mode.name in ("background", "record") else None


def hook(name: str) -> Any:
    """Return the function of the tuner that a mode calls.

    The tuner is built on the ops, and the ops on the policy. So the package names its functions in
    the entry points `tritune.policy`.
    """
    from importlib import metadata

    for entry in metadata.entry_points(group="tritune.policy", name=name):
        return entry.load()
    raise ModeError(f"tritune's installation names no function for {name!r}: install it again")
