"""The CPU backend's environment variables, each declared once. They are read once per process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

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


def _thread_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 4096:
        raise ValueError("expected a number of threads from 1 to 4096")
    return int(text)


NUM_THREADS = Variable(
    "TRITUNE_NUM_THREADS",
    _thread_count,
    "Threads that run a kernel's programs; unset: as many as torch.get_num_threads() says.",
)

VARIABLES: tuple[Variable[int], ...] = (NUM_THREADS,)
