"""Compiling configs in parallel, in processes that may die of it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from tritune.space import Config
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.workers.failures import Failure
from tritune.tuning.workers.worker import TICK_SECONDS, Death, Reply, Report, Worker, WorkerError

#: Nobody looks so late unless the whole group of processes was stopped for a while.
_SUSPENDED_SECONDS = 5.0


class CompilePool:
    """Worker processes that compile groups of configs, `jobs` groups at a time.

    `service` is the `Builder` of a case, or another class with its method `build`. A compiler that
    crashes, hangs or eats its memory costs that config and that process, which is replaced; the
    rest of the group goes to another. Results come in the order in which they are done. A thread
    looks after the workers, so that they have work while the caller does something else.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        jobs: int = 2,
        timeout_seconds: float = 120.0,
        memory_bytes: int | None = 4 << 30,
        service: str = "tritune.tuning.compile.builder:Builder",
    ) -> None:
        if jobs < 1:
            raise WorkerError(f"a pool of {jobs} workers builds nothing; jobs must be at least 1")
        self._arguments, self._timeout_seconds = arguments, timeout_seconds
        self._idle = [Worker(service, arguments, memory_bytes=memory_bytes) for _ in range(jobs)]
        self._running: dict[Worker, deque[Config]] = {}
        self._cancelled: set[Worker] = set()
        self._waiting: deque[deque[Config]] = deque()
        self._results: queue.SimpleQueue[BuildResult | WorkerError] = queue.SimpleQueue()
        self._outstanding = 0
        self._paused = self._closed = False
        self._broken: WorkerError | None = None
        # Guards everything above. Held for no longer than it takes to start a process.
        self._lock = threading.RLock()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CompilePool:
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
        """Have these compiled, each by itself, after those that were submitted before."""
        self.submit_groups([config] for config in configs)

    def submit_groups(self, groups: Iterable[Sequence[Config]]) -> None:
        """Have groups of configs compiled; those of a group by the same process, in a row."""
        with self._lock:
            if self._closed:
                raise WorkerError("the pool is closed and builds nothing more")
            if self._broken is not None:
                raise self._broken
            new = [deque(group) for group in groups if group]
            self._waiting.extend(new)
            self._outstanding += sum(map(len, new))
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
        """Yield results as they come, until everything that was submitted is done."""
        while self._outstanding:
            yield self.result()

    def switch_to(self, arguments: Mapping[str, Any]) -> None:
        """Compile for another case from now on; what was submitted before is forgotten."""
        with self._lock:
            self.cancel()
            self._arguments = arguments

    def drop_waiting(self) -> None:
        """Forget what was submitted and has not been begun; what has will give results."""
        with self._lock:
            self._outstanding -= sum(map(len, self._waiting))
            self._waiting.clear()

    def cancel(self) -> None:
        """Forget what was submitted: results that were not taken, builds that have not ended."""
        with self._lock:
            self._waiting.clear()
            # Those that have reported all results are about to be idle: they go on to what follows.
            done = {worker: group for worker, group in self._running.items() if not group}
            self._cancelled.update(self._running.keys() - done.keys())
            self._running = done
            while not self._results.empty():
                self._results.get()
            self._outstanding = 0
        self._wake()

    def pause(self) -> None:
        """Stop the workers where they are, so that nothing disturbs a measurement."""
        with self._lock:
            self._paused = True
            for worker in self._running:
                worker.pause()

    def resume(self) -> None:
        """Let the workers go on."""
        with self._lock:
            self._paused = False
            for worker in self._running:
                worker.resume()
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
        self._dismiss({*self._cancelled, *self._running, *self._idle})
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
                watched = [] if self._paused else list(self._running)
                files = [self._wake_out, *(worker.fileno() for worker in watched)]
                # With nobody at work, nothing needs looking at unless somebody calls.
                soonest = min((worker.deadline for worker in watched), default=None)
            now = time.monotonic()
            patience = soonest and min(TICK_SECONDS, max(0.0, soonest - now))
            if self._wake_out in wait(files, patience):
                os.read(self._wake_out, 1 << 16)
            late = time.monotonic() - now - (patience or 0.0)
            if watched and late > _SUSPENDED_SECONDS:
                # This process did not run, so the compilers did not either.
                for worker in watched:
                    worker.deadline += late

    def _attend(self) -> None:
        for worker, group in list(self._running.items()):
            try:
                for event in worker.poll():
                    self._take(worker, group, event)
            except WorkerError as error:
                self._release(worker)
                for _ in group:
                    self._results.put(error)
        while self._waiting and self._idle:
            group, worker = self._waiting.popleft(), self._idle.pop()
            worker.switch_to(self._arguments)
            worker.post("build", {"configs": list(group)}, self._timeout_seconds)
            self._running[worker] = group

    def _take(self, worker: Worker, group: deque[Config], event: Report | Reply | Death) -> None:
        """Pass on what a worker tells of its group."""
        if isinstance(event, Report):
            group.popleft()
            self._results.put(event.value)
            return
        self._release(worker)
        if isinstance(event, Death):
            if group:  # there is none if it died after its last report
                failure = Failure(event.reason, event.message)
                seconds = time.monotonic() - worker.began
                self._results.put(BuildResult(group.popleft(), seconds=seconds, failure=failure))
        elif not event.value:  # the process cannot go on
            worker.close()
        if group:
            self._waiting.appendleft(group)

    def _release(self, worker: Worker) -> None:
        del self._running[worker]
        self._idle.append(worker)

    def _dismiss(self, workers: set[Worker]) -> None:
        for worker in workers:
            worker.close()
            if worker not in self._idle:
                self._idle.append(worker)
        workers.clear()
