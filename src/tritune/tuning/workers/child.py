"""The child's side of a worker process: make a service, answer requests until the parent is gone.

Run as `python -m tritune.tuning.workers.child`; `process.py` beside it is the parent's side.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(fd: int, parent_pid: int) -> None:
    """Answer the requests that come in on a connection."""
    faulthandler.enable(all_threads=False)
    die_with(parent_pid)
    connection = Connection(fd)
    service: Any = None
    message: tuple[str, Any]

    def report(value: Any) -> None:
        connection.send(("report", value))

    while True:
        try:
            kind, value = connection.recv()
        except EOFError:
            return
        if kind == "path":
            sys.path[:] = value
            continue
        try:
            if kind == "start":
                # What the last service holds must not count against the next one's memory.
                service = None
                gc.collect()
                service = _make(report, *value)
                message = "ready", None
            else:
                method, arguments = value
                message = "answer", getattr(service, method)(**arguments)
        except Exception as error:
            message = "error", _text(error)
        connection.send(message)
        if service is None:
            return


def _make(
    report: Callable[[Any], None],
    service: str,
    arguments: Mapping[str, Any],
    memory_bytes: int | None,
) -> Any:
    lift_memory_limit()
    made = load(service)(**arguments, report=report)
    if memory_bytes is not None:
        limit_memory(memory_bytes)
    return made


def load(name: str) -> Callable[..., Any]:
    """Return what "package.module:name" names."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def die_with(parent_pid: int) -> None:
    """Have the system kill this process when its parent ends, however that ends. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before it could be asked for
        os._exit(1)


def limit_memory(more_bytes: int) -> None:
    """Let this process allocate so much more than it has now; does nothing outside Linux.

    The limit is on data, not on addresses: torch and GPU drivers reserve addresses by the terabyte.
    """
    if not sys.platform.startswith("linux"):
        return
    import resource

    limit = _data_bytes() + more_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def lift_memory_limit() -> None:
    """Undo `limit_memory`."""
    if sys.platform.startswith("linux"):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


@contextmanager
def without_memory_limit() -> Iterator[None]:
    """For what is no config's doing; what it leaves allocated is added to the limit."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    before = _data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        if soft != resource.RLIM_INFINITY:
            soft += max(0, _data_bytes() - before)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _text(error: Exception) -> str:
    from tritune.errors import TrituneError

    return str(error) if isinstance(error, TrituneError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:3]))
