"""Compiling configs in parallel, in processes that may die of it."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tritune.space import Config
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.binaries import signature_of
from tritune.tuning.workers.process import (
    Answer,
    Death,
    Event,
    Progress,
    Worker,
    WorkerError,
    explain,
)

_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class BuildResult:
    """One config, compiled or not."""

    config: Config
    #: Digest of what the case's other facts make of the binary: see `signature_of`.
    signature: str
    #: Digest of the launches; empty where the build failed. Equal digests launch the same thing.
    binary: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    #: How many kernels were compiled: 0 where all were in Triton's cache.
    compiles: int = 0
    #: One of `tritune.store.records.FAILURES`, or None.
    failure: str | None = None
    message: str = ""


class BuildPool:
    """Worker processes that compile the configs of a case, `jobs` at a time.

    A compiler that crashes, hangs or eats its memory costs that config and that worker, which is
    replaced. Results come in the order in which they are done. A thread looks after the workers,
    so that they have work while the caller does something else.
    """

    def __init__(
        self,
        spec: CaseSpec,
        jobs: int = 2,
        timeout_seconds: float = 120.0,
        memory_bytes: int | None = 4 << 30,
    ) -> None:
        if jobs < 1:
            raise WorkerError(f"a pool of {jobs} workers builds nothing; jobs must be at least 1")
        self._spec, self._signature = spec, signature_of(spec)
        self._timeout_seconds = timeout_seconds
        self._idle = [
            Worker(
                "tritune.tuning.compile.builder:Builder", spec.to_json(), memory_bytes=memory_bytes
            )
            for _ in range(jobs)
        ]
        self._running: dict[Worker, Config] = {}
        self._cancelled: set[Worker] = set()
        self._waiting: deque[Config] = deque()
        self._results: queue.SimpleQueue[BuildResult | WorkerError] = queue.SimpleQueue()
        self._outstanding = 0
        self._paused = self._closed = False
        self._broken: WorkerError | None = None
        # Guards everything above. Held for no longer than it takes to start a process.
        self._lock = threading.RLock()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def outstanding(self) -> int:
        """Return how many submitted configs have not been taken as results yet."""
        return self._outstanding

    @property
    def broken(self) -> bool:
        """Return whether something other than a config has ended its work for good."""
        return self._broken is not None

    def submit(self, configs: Iterable[Config]) -> None:
        """Have these compiled, after those that were submitted before."""
        with self._lock:
            if self._closed:
                raise WorkerError("the pool is closed and builds nothing more")
            if self._broken is not None:
                raise self._broken
            before = len(self._waiting)
            self._waiting.extend(configs)
            self._outstanding += len(self._waiting) - before
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="builds")
                self._thread.start()
        self._wake()

    def result(self, timeout_seconds: float | None = None) -> BuildResult:
        """Return the next result, as soon as there is one; TimeoutError if that takes too long.

        WorkerError where no worker can be started for this case at all, or nothing is to be had.
        """
        if not self._outstanding:
            raise WorkerError("nothing was submitted that has not been taken already")
        try:
            found = self._results.get(timeout=timeout_seconds)
        except queue.Empty:
            raise TimeoutError(f"no build was done within {timeout_seconds:g} s") from None
        self._outstanding -= 1
        if isinstance(found, WorkerError):
            raise found
        return found

    def as_completed(self) -> Iterator[BuildResult]:
        """Results as they come, until everything that was submitted is done."""
        while self._outstanding:
            yield self.result()

    def turn_to(self, spec: CaseSpec) -> None:
        """Compile for another case from now on; what was submitted before is forgotten."""
        with self._lock:
            self.cancel()
            self._spec, self._signature = spec, signature_of(spec)

    def drop_waiting(self) -> None:
        """Forget what was submitted and has not been begun; what has will give results."""
        with self._lock:
            self._outstanding -= len(self._waiting)
            self._waiting.clear()

    def cancel(self) -> None:
        """Forget what was submitted: results that were not taken, builds that have not ended."""
        with self._lock:
            self._waiting.clear()
            self._cancelled.update(self._running)
            self._running.clear()
            while not self._results.empty():
                self._results.get()
            self._outstanding = 0
        self._wake()

    def pause(self) -> None:
        """Stop the workers where they are, so that nothing disturbs a measurement."""
        with self._lock:
            self._paused = True
            for worker in self._running:
                worker.stop()

    def resume(self) -> None:
        """Let the workers go on."""
        with self._lock:
            self._paused = False
            for worker in self._running:
                worker.go_on()
        self._wake()

    def close(self) -> None:
        """End all workers; what they were doing is lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.cancel()
        if self._thread is not None:
            self._thread.join()
        self._dismiss(self._cancelled | set(self._idle))
        os.close(self._wake_out)
        os.close(self._wake_in)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_in, b"\0")

    def _work(self) -> None:
        """Run the thread. Whoever waits for a result must hear of it if the thread cannot go on."""
        try:
            self._look_after_workers()
        except Exception as error:
            with self._lock:
                self._broken = WorkerError(f"builds cannot go on: {error}")
                for _ in range(self._outstanding):
                    self._results.put(self._broken)

    def _look_after_workers(self) -> None:
        """Hand out configs, wait for workers, pass on results.

        While the pool is open, workers are started and ended here only, so that none is closed
        while it is waited for and all live as long as this thread.
        """
        while not self._closed:
            with self._lock:
                self._dismiss(self._cancelled)
                if not self._paused:
                    self._attend()
                watched = [] if self._paused else [worker.fileno() for worker in self._running]
                patience = self._patience()
            ready, _, _ = select.select([self._wake_out, *watched], [], [], patience)
            if self._wake_out in ready:
                os.read(self._wake_out, 1 << 16)

    def _attend(self) -> None:
        for worker, config in list(self._running.items()):
            for event in worker.poll():
                result = self._outcome(config, event, time.monotonic() - worker.began)
                if result is not None:
                    del self._running[worker]
                    self._idle.append(worker)
                    self._results.put(result)
                    if isinstance(event, Answer) and event.value.get("tainted"):
                        worker.close()
        while self._waiting and self._idle:
            config, worker = self._waiting.popleft(), self._idle.pop()
            worker.turn_to(self._spec.to_json())
            worker.post("build", {"config": config.as_kwargs()}, self._timeout_seconds)
            self._running[worker] = config

    def _dismiss(self, workers: set[Worker]) -> None:
        for worker in workers:
            worker.close()
            if worker not in self._idle:
                self._idle.append(worker)
        workers.clear()

    def _patience(self) -> float | None:
        """Return how long nothing needs looking at unless somebody calls; None: for ever."""
        if self._paused or not self._running:
            return None
        left = min(worker.deadline for worker in self._running) - time.monotonic()
        return min(_TICK_SECONDS, max(0.0, left))

    def _outcome(
        self, config: Config, event: Event, seconds: float
    ) -> BuildResult | WorkerError | None:
        """Return what an event makes of a config that is being built; None while it is not over."""
        result = BuildResult(config, self._signature, seconds=seconds)
        if isinstance(event, Progress):
            return None
        if isinstance(event, Answer):
            known = {name: value for name, value in event.value.items() if name != "tainted"}
            return replace(result, **known)
        if isinstance(event, Death) and not event.starting:
            return replace(result, failure=event.failure.reason, message=event.failure.message)
        return WorkerError(explain(event))
