"""The environment variables, each declared once with its type. Imports nothing.

The CPU backend declares its own beside its code, with the same class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """An environment variable, and how its text becomes a value."""

    name: str
    parse: Callable[[str], T]

    def read(self) -> T | None:
        """Return the value, or None where it is unset or empty. A ValueError names the variable."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}: {error}") from None


#: How configs are chosen: see `tritune.mode`.
MODES = ("default", "serve", "tune", "background", "record", "pinned")


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return parse


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError("expected a number of seconds, more than 0")
    return value


#: The store: a file's path (SQLite) or an SQLAlchemy URL; unset: a file in the user's cache.
STORE = Variable("TRITUNE_STORE", str)
#: How configs are chosen; unset: default.
MODE = Variable("TRITUNE_MODE", _one_of(*MODES))
#: The file of `tritune db export --winners` that the modes pinned and serve answer from.
PINNED = Variable("TRITUNE_PINNED", str)
#: How often the background mode stores the problems it met and looks for winners; unset: 60.
BACKGROUND_SECONDS = Variable("TRITUNE_BACKGROUND_SECONDS", _seconds)
#: 1: tuning accepts every measurement, whatever else runs on the machine; unset: what other
#: processes disturb is repeated, and one process at a time measures on a device.
BUSY = Variable("TRITUNE_BUSY", _switch)
#: 1: ops on a GPU also check the values of index tensors, which waits for the device.
CHECK = Variable("TRITUNE_CHECK", _switch)
#: 0: results of ops on the CPU do not ask for huge pages; unset: large ones do.
HUGE_PAGES = Variable("TRITUNE_HUGE_PAGES", _switch)
#: 1: every `triton.autotune` kernel of the process is tuned as under `tritune run` (docs/run.md);
#: serve: stored winners are used and nothing is tuned; unset or 0: as Triton does it.
AUTOTUNE = Variable("TRITUNE_AUTOTUNE", _one_of("0", "1", "serve"))
#: Set by `tritune run` for the program's processes: the file in which they note what was tuned.
RUN_LOG = Variable("TRITUNE_RUN_LOG", str)
