"""Run delay: how long our own threads waited for a CPU, which tells if others disturbed us."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from tritune import env

#: A sample is disturbed if one of the threads waited for a larger share of it than this, ...
MOST_SHARE = 0.03
#: ... and for longer than it takes to wake a thread on a CPU that has nothing else to do.
WAKING_MS = 0.1

_TASKS = "/proc/self/task"

#: The nanoseconds for which each thread of this process has waited for a CPU so far.
Delays = Mapping[str, int]


class RunDelay:
    """Reads the time that each thread of this process was ready to run and did not.

    Linux keeps it as the second number of a thread's schedstat. Where there is none, and where
    TRITUNE_BUSY says that it does not matter, no thread has ever waited.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._known = os.path.exists(f"{_TASKS}/{os.getpid()}/schedstat")

    def read(self) -> Delays:
        """Read the delays until now. Takes a few microseconds per thread."""
        if not self._known or env.BUSY.read():
            return {}
        found = {}
        for thread in os.listdir(_TASKS):
            try:
                if thread not in self._files:
                    path = f"{_TASKS}/{thread}/schedstat"
                    self._files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                found[thread] = int(os.pread(self._files[thread], 128, 0).split()[1])
            except (OSError, IndexError):  # it has just ended
                self._forget(thread)
        for thread in self._files.keys() - found.keys():
            self._forget(thread)
        return found

    def _forget(self, thread: str) -> None:
        file = self._files.pop(thread, None)
        if file is not None:
            os.close(file)


@functools.cache
def run_delay() -> RunDelay:
    """Return this process's reader, which keeps files open."""
    return RunDelay()


def waited_ms(before: Delays, after: Delays) -> float:
    """Return the longest time that one thread has waited in between.

    Not the sum: threads that wait at the same time delay what they compute together only once.
    """
    waits = (nanoseconds - before.get(thread, 0) for thread, nanoseconds in after.items())
    return max(waits, default=0) / 1e6


def disturbed(waited: float, sample_ms: float) -> bool:
    """Return whether other processes decided a sample of this length."""
    return waited > max(WAKING_MS, MOST_SHARE * sample_ms)
