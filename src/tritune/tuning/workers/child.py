"""The child's side of a worker process: make a service, answer requests until the parent is gone.

Run as `python -m tritune.tuning.workers.child`; `worker.py` beside it is the parent's side.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

#: The number of bytes of a message to the parent, which comes before it.
MESSAGE_SIZE = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


def main(fd: int, parent_pid: int) -> None:
    """Answer the requests that come in on a connection."""
    faulthandler.enable(all_threads=False)
    die_with(parent_pid)
    connection, replies = Connection(fd), open(fd, "wb", closefd=False)  # noqa: SIM115
    service: Any = None
    message: tuple[str, Any]

    def send(message: tuple[str, Any]) -> None:
        data = pickle.dumps(message)
        replies.write(MESSAGE_SIZE.pack(len(data)) + data)
        replies.flush()

    def report(value: Any) -> None:
        send(("report", value))

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
        send(message)
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
    _set_memory_limit(_data_bytes() + more_bytes)


def lift_memory_limit() -> None:
    """Undo `limit_memory`."""
    _set_memory_limit(None)


@contextmanager
def without_memory_limit() -> Iterator[None]:
    """Lift the limit for what is no config's doing; what that leaves allocated is added to it."""
    data_bytes = _data_bytes()
    limit = _set_memory_limit(None)
    try:
        yield
    finally:
        if limit is not None:
            _set_memory_limit(limit + max(0, _data_bytes() - data_bytes))


def _set_memory_limit(limit: int | None) -> int | None:
    """Set the limit, or the hard limit if that is less; return the one before. None: no limit."""
    if not sys.platform.startswith("linux"):
        return None
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit is None or (hard != resource.RLIM_INFINITY and limit > hard):
        limit = hard
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return None if before == resource.RLIM_INFINITY else before


def _data_bytes() -> int:
    if not os.path.exists("/proc/self/status"):
        return 0
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
