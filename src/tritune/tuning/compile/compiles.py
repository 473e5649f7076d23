"""Counting Triton's compilations; what it found in its cache does not count."""

from __future__ import annotations

import functools
from typing import Any

from triton import knobs


class CompileCount:
    """Counts a process's compilations from now on; whoever listens already goes on listening."""

    def __init__(self) -> None:
        self._count = 0
        self._before = knobs.compilation.listener
        knobs.compilation.listener = self._listen

    def taken(self) -> int:
        """Return how many there were since this was last asked."""
        count, self._count = self._count, 0
        return count

    def _listen(self, *args: Any, **values: Any) -> None:
        self._count += not values.get("cache_hit")
        if self._before is not None:
            self._before(*args, **values)


@functools.cache
def compile_count() -> CompileCount:
    """Return this process's count, which begins with the first call."""
    return CompileCount()
