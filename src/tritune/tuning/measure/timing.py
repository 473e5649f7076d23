"""Stopwatches for CPUs and GPUs: the time of a call with cold caches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tritune.tuning.measure.disturbance import disturbed, run_delay, waited_ms

_cuda: Any = torch.cuda  # without its types: half of its functions have none

#: Calls shorter than this, with warm caches, are repeated within one sample until they are not: a
#: sample would tell more of the clock and of the interpreter's own cold start than of the kernel.
SHORTEST_SAMPLE_MS = 0.1
MOST_CALLS = 100
#: So many calls find out how long a short one takes.
WARMING_CALLS = 4
#: One call of this length tells as much as several shorter ones.
LONG_MS = 1000.0
#: Below this a GPU's launches are replayed from a graph: the host cannot keep ahead of them.
SHORT_ON_GPU_MS = 0.2


@dataclass(frozen=True)
class Sample:
    """The time of one call, and whether other processes had the CPUs meanwhile."""

    ms: float
    disturbed: bool = False


class Stopwatch(Protocol):
    """Takes the time of one candidate's calls on one device."""

    #: So many calls are one sample. The first of them finds the caches cold, so times can be
    #: compared only where this number is the same.
    calls: int

    def sample(self) -> Sample:
        """Time one call: caches flushed before, several calls if they are short."""

    def sample_ms(self) -> float:
        """Return the time of one call, disturbed or not."""


class CpuStopwatch:
    """Wall-clock time. `prepare` is called before each sample, outside of the time."""

    def __init__(
        self,
        call: Callable[[], Any],
        prepare: Callable[[], None],
        flush: Flush,
        calls: int | None = None,
    ) -> None:
        self._call, self._prepare, self._flush = call, prepare, flush
        prepare()
        #: So many calls are one sample.
        self.calls = 1
        # The first calls load and warm up, and are no measure for the others.
        warm_ms = self._warm_ms()
        for _ in range(WARMING_CALLS):
            before = run_delay().read()
            if warm_ms < LONG_MS:
                warm_ms = min(warm_ms, self._warm_ms())
            long = warm_ms > SHORTEST_SAMPLE_MS * MOST_CALLS
            if long and not disturbed(waited_ms(before, run_delay().read()), warm_ms):
                break
        self.calls = calls or calls_for(warm_ms)

    def sample(self) -> Sample:
        self._prepare()
        # While the caches are emptied too: who shares the CPUs then also shares them afterwards,
        # and a call too short to be interrupted would be slowed down unnoticed.
        before = run_delay().read()
        self._flush()
        ms = self._warm_ms()
        waited = waited_ms(before, run_delay().read())
        return Sample(ms, disturbed(waited, ms * self.calls))

    def sample_ms(self) -> float:
        return self.sample().ms

    def _warm_ms(self) -> float:
        call, calls = self._call, range(self.calls)
        with _NoCollection():
            start = time.perf_counter_ns()
            for _ in calls:
                kept = call()
            end = time.perf_counter_ns()
        del kept
        return (end - start) / 1e6 / self.calls


class GpuStopwatch:
    """The device's own clock: two events, or a captured graph between them for short calls."""

    def __init__(
        self,
        call: Callable[[], Any],
        prepare: Callable[[], None],
        flush: Flush,
        calls: int | None = None,
    ) -> None:
        self._call, self._prepare, self._flush = call, prepare, flush
        self.calls = 1
        self._replay: Callable[[], Any] = call
        prepare()
        call()
        _cuda.synchronize()
        once = self.sample_ms()
        if once < SHORT_ON_GPU_MS:
            self.calls = calls or calls_for(once)
            self._replay = self._captured() or self._repeated

    def sample(self) -> Sample:
        # Nothing tells what else a GPU was doing; only how far its times are spread.
        return Sample(self.sample_ms())

    def sample_ms(self) -> float:
        self._prepare()
        self._flush()
        begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
        with _NoCollection():
            begin.record()
            kept = self._replay()
            end.record()
        end.synchronize()
        del kept
        return float(begin.elapsed_time(end)) / self.calls

    def _repeated(self) -> Any:
        for _ in range(self.calls):
            kept = self._call()
        return kept

    def _captured(self) -> Callable[[], Any] | None:
        """Capture the calls as a graph; None where something in them cannot be captured."""
        graph = _cuda.CUDAGraph()
        stream = _cuda.Stream()
        stream.wait_stream(_cuda.current_stream())
        with suppress(RuntimeError):
            with _cuda.stream(stream):
                self._call()  # what is made at the first call on a stream must not be captured
            _cuda.current_stream().wait_stream(stream)
            with _cuda.graph(graph, stream=stream):
                kept = self._repeated()

            def replay() -> Any:
                graph.replay()
                return kept

            return replay
        _cuda.synchronize()
        return None


class Flush:
    """Empties the caches of a device; made once, for the buffer it needs is large."""

    def __init__(self, device: torch.device) -> None:
        from triton.runtime import driver

        self._clear: Callable[[torch.Tensor], Any] = driver.active.clear_cache
        self._buffer: torch.Tensor = driver.active.get_empty_cache_for_benchmark()
        if device.type == "cpu":
            # Read, not written: dirty lines would be written back at the candidate's expense. But
            # written once, for memory that never was is one page of zeros.
            self._buffer.fill_(1)
            self._buffer = self._buffer[: self._buffer.numel() // 8 * 8].view(torch.int64)
            self._clear = torch.sum
        self.nbytes = self._buffer.numel() * self._buffer.element_size()

    def __call__(self) -> None:
        self._clear(self._buffer)


def calls_for(once_ms: float) -> int:
    """Return how many calls make a sample that the clock resolves: a power of four, so that two
    processes that time the same call mostly agree.
    """
    needed = min(MOST_CALLS, SHORTEST_SAMPLE_MS / max(once_ms, 1e-6))
    calls = 1
    while calls < needed:
        calls *= 4
    return min(calls, MOST_CALLS)


def stopwatch(
    device: torch.device,
    call: Callable[[], Any],
    prepare: Callable[[], None],
    flush: Flush,
    calls: int | None = None,
) -> Stopwatch:
    """Make the stopwatch of a device, with a first call, which loads and warms up.

    With `calls`, so many are a sample if they are short; else as many as the clock needs.
    """
    kind = CpuStopwatch if device.type == "cpu" else GpuStopwatch
    return kind(call, prepare, flush, calls)


class _NoCollection:
    """A block without garbage collection, for while the clock runs."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()
