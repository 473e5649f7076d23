"""The worker processes of a program that tunes as it goes: started for the first kernel, used for
those that follow, and dismissed when there was nothing to do for a while.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tritune.tuning.tuner import Settings
from tritune.tuning.workers.crew import Crew

#: How long workers wait for the next kernel. Each holds torch in its memory.
_IDLE_SECONDS = 20.0


class _Kept:
    """A crew, and what it was started for."""

    def __init__(self, settings: Settings) -> None:
        self.crew = Crew(settings)
        self.jobs, self.memory_bytes = settings.jobs, settings.memory_bytes
        self.pid, self.environment, self.folder = _circumstances()

    def suits(self, settings: Settings) -> bool:
        """Return whether its processes are such as would be started now."""
        enough = self.jobs >= settings.jobs and self.memory_bytes >= settings.memory_bytes
        return enough and (self.pid, self.environment, self.folder) == _circumstances()

    def dismiss(self) -> None:
        if self.pid == os.getpid():  # after a fork, they are the parent's
            self.crew.__exit__()


def _circumstances() -> tuple[int, dict[str, str], str]:
    return os.getpid(), dict(os.environ), os.getcwd()


_lock = threading.Lock()
_idle: _Kept | None = None
_dismissal: threading.Timer | None = None


@contextmanager
def shared_crew(settings: Settings) -> Iterator[Crew]:
    """Workers for one case; they are kept afterwards."""
    kept = _take(settings)
    try:
        yield kept.crew
    except BaseException:
        kept.dismiss()  # what they are doing is of no use any more
        raise
    _keep(kept)


def dismiss() -> None:
    """End the workers that wait, if there are any."""
    global _idle
    with _lock:
        kept, _idle = _idle, None
    if kept is not None:
        kept.dismiss()


def _take(settings: Settings) -> _Kept:
    """Return the crew that waits, for this caller alone, or a new one."""
    global _idle
    with _lock:
        if _dismissal is not None:
            _dismissal.cancel()
        kept, _idle = _idle, None
    if kept is not None:
        if kept.suits(settings):
            return kept
        kept.dismiss()
    return _Kept(settings)


def _keep(kept: _Kept) -> None:
    global _idle, _dismissal
    with _lock:
        before, _idle = _idle, kept
        _dismissal = threading.Timer(_IDLE_SECONDS, dismiss)
        _dismissal.daemon = True
        _dismissal.start()
    if before is not None:
        before.dismiss()


atexit.register(dismiss)
