"""Work for idle time: one thing after the other, on a thread whose processes give way to others."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

from tritune.policy.sources import warn_once

_NICENESS = 15

_waiting: queue.Queue[Callable[[], None]] = queue.Queue()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def later(work: Callable[[], None]) -> None:
    """Have something done when what was asked for before is done; the program's end drops it."""
    global _thread
    _waiting.put(work)
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_work, daemon=True, name="tritune-later")
            _thread.start()


def wait() -> None:
    """Come back when everything that was asked for is done."""
    _waiting.join()


def _work() -> None:
    with contextlib.suppress(AttributeError, OSError):
        # On Linux this is the thread's own, and what it starts inherits it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    while True:
        work = _waiting.get()
        try:
            work()
        except Exception as error:
            # The program runs without it.
            warn_once(f"tuning in the background failed ({type(error).__name__}: {error})")
        finally:
            _waiting.task_done()
