"""A GPU's clock without a GPU: what `torch.cuda` offers a stopwatch, as a list of what was done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeGpu:
    """Takes the place of `torch.cuda` in `tritune.tuning.measure.timing`.

    A call is work of `call_ms`; events tell how much work was queued between them. What is captured
    is not done until it is replayed.
    """

    def __init__(self, call_ms: float, capturable: bool = True) -> None:
        self.call_ms, self.capturable = call_ms, capturable
        self.did: list[str] = []
        self.queued_ms = 0.0
        self._capturing: list[float] | None = None

    def work(self) -> str:
        """The candidate's call."""
        self.did.append("call")
        if self._capturing is None:
            self.queued_ms += self.call_ms
        else:
            if not self.capturable:
                raise RuntimeError("operation not permitted when stream is capturing")
            self._capturing.append(self.call_ms)
        return "outputs"

    def synchronize(self) -> None:
        self.did.append("synchronize")

    def Event(self, enable_timing: bool) -> Any:
        return _Event(self)

    def Stream(self) -> Any:
        return _Stream()

    def current_stream(self) -> Any:
        return _Stream()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Any:
        return _Graph(self)

    @contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self._capturing = graph.work
        try:
            yield
        finally:
            self._capturing = None


class _Event:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def record(self) -> None:
        self._gpu.did.append("event")
        self.at_ms = self._gpu.queued_ms

    def synchronize(self) -> None:
        self._gpu.did.append("wait")

    def elapsed_time(self, end: _Event) -> float:
        return end.at_ms - self.at_ms


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


class _Graph:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self.work = gpu, list[float]()

    def replay(self) -> None:
        self._gpu.did.append("replay")
        self._gpu.queued_ms += sum(self.work)
