"""The lock on a device: two processes that measure at once would disturb each other.

The processes of one user on one machine exclude each other by locks on files, which the system
releases when a process ends, however it ends. The CPUs of a machine are one device, a GPU is one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import torch

from tritune import env
from tritune.errors import DeviceTakenError, TrituneError


class _Here(threading.local):
    """The locks that this thread has."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_here = _Here()


@contextmanager
def device_lock(
    device: torch.device | str,
    *,
    wait: bool = True,
    waiting: Callable[[int | None], None] = lambda holder: None,
) -> Iterator[None]:
    """Keep other processes from measuring on the device for as long as the block.

    If one does, `waiting` is told its process id, if that is known, before this one waits; it is an
    error instead if it is not to `wait`. Those that wait get the device in turn. Within the block,
    the same thread may enter another. With TRITUNE_BUSY nobody is excluded.
    """
    path = lock_path(torch.device(device))
    if env.BUSY.read() or path in _here.paths:
        yield
        return
    with ExitStack() as files:
        held = files.enter_context(_opened(path))
        # Whoever waits for the device keeps this one meanwhile. So the one that has just released
        # the device cannot take it again before the one that has waited.
        turn = files.enter_context(_opened(path.with_suffix(".turn")))
        told = False
        for file in (turn, held):
            if not _lock(file, fcntl.LOCK_NB):
                holder = _holder(held) or _holder(turn)
                if not wait:
                    raise DeviceTakenError(
                        f"process {holder or '(unknown)'} measures on {device}: try again later"
                    )
                if not told:
                    waiting(holder)
                    told = True
                _lock(file)
            os.ftruncate(file.fileno(), 0)  # a process that was killed has left its id
            os.pwrite(file.fileno(), str(os.getpid()).encode(), 0)
        _unlock(turn)
        _here.paths.add(path)
        try:
            yield
        finally:
            _here.paths.remove(path)
            _unlock(held)


def lock_path(device: torch.device) -> Path:
    """Return the file that stands for a device, on this machine and for this user."""
    name = device.type
    if device.type != "cpu":
        number = torch.cuda.current_device() if device.index is None else device.index
        # Which of the machine's GPUs a number means differs from process to process.
        properties = torch.cuda.get_device_properties(number)
        name = f"{name}-{getattr(properties, 'uuid', number)}"
    return Path(tempfile.gettempdir()) / f"tritune-{os.getuid()}-measuring-{name}.lock"


def _opened(path: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise TrituneError(
            f"{path}, which keeps others from measuring at the same time, cannot be opened "
            f"({error.strerror}): remove it, or set TMPDIR to a folder of your own"
        ) from None


def _lock(file: IO[bytes], flags: int = 0) -> bool:
    """Lock a file; False if it is another's and LOCK_NB says not to wait."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    return True


def _unlock(file: IO[bytes]) -> None:
    os.ftruncate(file.fileno(), 0)
    # Not only by closing: a process that was forked meanwhile has the file open, too.
    fcntl.flock(file, fcntl.LOCK_UN)


def _holder(file: IO[bytes]) -> int | None:
    """Return the process that has written its id into a lock's file."""
    with suppress(ValueError):
        return int(os.pread(file.fileno(), 20, 0))
    return None
