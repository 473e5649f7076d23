"""The environment variables, each declared once: its type, what it means. Imports nothing.

The CPU backend declares its own beside its code, with the same class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable: how its text becomes a value, and what it means."""

    name: str
    parse: Callable[[str], T]
    documentation: str

    def read(self) -> T | None:
        """The value, or None where it is unset or empty; a ValueError names the variable."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}: {error}") from None


#: How configs are chosen: see `tritune.mode`.
MODES = ("default", "serve", "tune", "background", "record", "pinned")
#: What becomes of the program's `triton.autotune` kernels: see docs/run.md.
AUTOTUNE_CHOICES = ("0", "1", "serve")


def _mode(text: str) -> str:
    if text not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}")
    return text


def _autotune(text: str) -> str:
    if text not in AUTOTUNE_CHOICES:
        raise ValueError(f"expected one of {', '.join(AUTOTUNE_CHOICES)}")
    return text


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


STORE = Variable(
    "TRITUNE_STORE",
    str,
    "The store: a file's path (SQLite) or an SQLAlchemy URL; unset: a file in the user's cache "
    "directory.",
)
MODE = Variable(
    "TRITUNE_MODE",
    _mode,
    f"How configs are chosen, one of {', '.join(MODES)}; unset: default.",
)
PINNED = Variable(
    "TRITUNE_PINNED",
    str,
    "The reviewed file that the modes pinned and serve answer from, as `tritune db export` writes "
    "it.",
)
BACKGROUND_SECONDS = Variable(
    "TRITUNE_BACKGROUND_SECONDS",
    _seconds,
    "How often the background mode writes down the problems it met and looks for new winners; "
    "unset: 60.",
)
BUSY = Variable(
    "TRITUNE_BUSY",
    _switch,
    "1: tuning measures whatever else runs on the machine, and believes it; unset: what other "
    "processes disturb is repeated, and one process at a time measures on a device.",
)
CHECK = Variable(
    "TRITUNE_CHECK",
    _switch,
    "1: ops on a GPU check the values of index tensors too, which waits for the device.",
)
HUGE_PAGES = Variable(
    "TRITUNE_HUGE_PAGES",
    _switch,
    "0: results of ops on the CPU do not ask for large pages of memory; unset: large ones do.",
)
AUTOTUNE = Variable(
    "TRITUNE_AUTOTUNE",
    _autotune,
    "1: every triton.autotune kernel of the process remembers its winners and is tuned in "
    "processes of its own, as under `tritune run`; serve: the same, but nothing is tuned; unset or "
    "0: as Triton does it.",
)
RUN_LOG = Variable(
    "TRITUNE_RUN_LOG",
    str,
    "Set by `tritune run` for the program's processes: the file in which they note what was tuned.",
)

VARIABLES: tuple[Variable[Any], ...] = (
    STORE,
    MODE,
    PINNED,
    BACKGROUND_SECONDS,
    BUSY,
    CHECK,
    HUGE_PAGES,
    AUTOTUNE,
    RUN_LOG,
)
