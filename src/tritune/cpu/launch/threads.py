"""The number of threads of a launch, and launches in a forked child.

`driver.py` imports this when Triton is imported, so that no fork goes unnoticed: only the standard
library may be imported here.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from tritune.cpu import env


def _first_count() -> int:
    """Read the environment or torch's number, and let count() use the same from then on."""
    global _source
    pinned = env.NUM_THREADS.read()
    if pinned is not None:
        _source = lambda: pinned  # noqa: E731
    else:
        import torch

        _source = torch.get_num_threads
    return _source()


_source: Callable[[], int] = _first_count


def count() -> int:
    """Return the number of threads: TRITUNE_NUM_THREADS if set, else torch's own."""
    return _source()


class Fork:
    """Set in a forked child only: the thread that came through the fork, and the one that helps it.

    The parent's OpenMP pool is recorded in that thread but its workers did not survive, so a
    parallel region started there would wait for them for ever. A thread born in the child has a
    pool of its own, so launches are handed to one.
    """

    thread: int | None = None
    calls: queue.SimpleQueue[_Call] | None = None


_Call = tuple[Callable[..., Any], tuple[Any, ...], "queue.SimpleQueue[BaseException | None]"]

fork = Fork()


def _after_fork_in_child() -> None:
    fork.thread = threading.get_ident()
    fork.calls = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def run_in_child(function: Callable[..., Any], *args: Any) -> None:
    """Call `function(*args)` where a parallel region is safe in a forked child."""
    if threading.get_ident() != fork.thread:
        function(*args)
        return
    if fork.calls is None:
        calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name="tritune-launch", daemon=True).start()
        fork.calls = calls
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    fork.calls.put((function, args, outcome))
    error = outcome.get()
    if error is not None:
        raise error


def _serve(calls: queue.SimpleQueue[_Call]) -> None:
    while True:
        function, args, outcome = calls.get()
        try:
            function(*args)
        except BaseException as error:
            outcome.put(error)
        else:
            outcome.put(None)
