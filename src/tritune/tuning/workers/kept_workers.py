"""The worker processes of a run, kept from case to case because starting them takes seconds."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tritune.space import Config
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.job import Settings
from tritune.tuning.measure.client import MeasurementClient

#: How long shared workers wait for the next kernel. Each holds torch in its memory.
_IDLE_SECONDS = 20.0


class Workers:
    """The processes that compile and the one that measures, switched from one case to the next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: CompilePool | None = None
        self._client: MeasurementClient | None = None
        self._started_for = _circumstances()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def switch_to(self, spec: CaseSpec, default: Config) -> tuple[CompilePool, MeasurementClient]:
        """Return both, for this case. A pool that broke is replaced."""
        settings, memory, arguments = self._settings, self._settings.memory_bytes, spec.to_json()
        if self._pool is not None and self._pool.broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            timeout_seconds = settings.build_timeout_seconds
            self._pool = CompilePool(arguments, settings.jobs, timeout_seconds, memory)
        else:
            self._pool.switch_to(arguments)
        if self._client is None:
            self._client = MeasurementClient(spec, settings.run_timeout_seconds, memory, default)
        else:
            self._client.switch_to(spec, default)
        return self._pool, self._client

    def close(self) -> None:
        """End the processes, unless this one is a fork: then they are its parent's."""
        if self._started_for[0] != os.getpid():
            return
        if self._pool is not None:
            self._pool.close()
        if self._client is not None:
            self._client.close()

    def suit(self, settings: Settings) -> bool:
        """Return whether the processes are such as would be started now for these settings."""
        mine = self._settings
        enough = mine.jobs >= settings.jobs and mine.memory_bytes >= settings.memory_bytes
        return enough and self._started_for == _circumstances()


def _circumstances() -> tuple[int, dict[str, str], str]:
    return os.getpid(), dict(os.environ), os.getcwd()


_lock = threading.Lock()
_idle: Workers | None = None
_timer: threading.Timer | None = None


@contextmanager
def shared_workers(settings: Settings) -> Iterator[Workers]:
    """Give the workers of a program that tunes as it goes to one case.

    They are started for the first, and closed when there was none for a while.
    """
    workers = _exchange(None)
    if workers is None or not workers.suit(settings):
        if workers is not None:
            workers.close()
        workers = Workers(settings)
    try:
        yield workers
    except BaseException:
        workers.close()  # what they are doing is of no use any more
        raise
    before = _exchange(workers)
    if before is not None:
        before.close()


def close_idle() -> None:
    """Close the shared workers that wait, if there are any."""
    workers = _exchange(None)
    if workers is not None:
        workers.close()


def _exchange(workers: Workers | None) -> Workers | None:
    """Have these workers wait for the next case; return those that waited, for the caller alone."""
    global _idle, _timer
    with _lock:
        before, _idle = _idle, workers
        if _timer is not None:
            _timer.cancel()
        if workers is not None:
            _timer = threading.Timer(_IDLE_SECONDS, close_idle)
            _timer.daemon = True
            _timer.start()
    return before


atexit.register(close_idle)
