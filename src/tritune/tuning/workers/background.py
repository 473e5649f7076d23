"""A queue of work for one background thread; its processes have a low priority."""

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


def run_in_background(work: Callable[[], None]) -> None:
    """Queue work; what is not done when the program ends is dropped."""
    global _thread
    _waiting.put(work)
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_work, daemon=True, name="tritune-background")
            _thread.start()


def wait() -> None:
    """Wait until all queued work is done."""
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
