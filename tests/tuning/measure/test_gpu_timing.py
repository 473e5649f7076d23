"""How calls on a GPU are timed, without a GPU: events, graphs, flushing, in the right order."""

from __future__ import annotations

import pytest

from tests.tuning.measure.fake_gpu import FakeGpu
from tritune.tuning.measure import timing
from tritune.tuning.measure.timing import MOST_CALLS, SHORTEST_SAMPLE_MS, GpuStopwatch


def stopwatch(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> GpuStopwatch:
    monkeypatch.setattr(timing, "_cuda", gpu)
    watch = GpuStopwatch(
        gpu.work, lambda: gpu.did.append("prepare"), lambda: gpu.did.append("flush")
    )
    gpu.did.clear()
    return watch


def test_a_long_call_is_timed_once_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(call_ms=3.0)
    watch = stopwatch(gpu, monkeypatch)
    assert watch.sample_ms() == pytest.approx(3.0)
    assert gpu.did == ["prepare", "flush", "event", "call", "event", "wait"]


def test_a_short_call_is_replayed_from_a_graph_and_its_time_is_of_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(call_ms=SHORTEST_SAMPLE_MS / 10)
    watch = stopwatch(gpu, monkeypatch)
    assert watch.sample_ms() == pytest.approx(gpu.call_ms)
    assert gpu.did == ["prepare", "flush", "event", "replay", "event", "wait"]


def test_a_sample_has_so_many_short_calls_that_the_clock_resolves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(call_ms=SHORTEST_SAMPLE_MS / 10, capturable=False)
    watch = stopwatch(gpu, monkeypatch)
    assert watch.sample_ms() == pytest.approx(gpu.call_ms)
    assert gpu.did.count("call") == 16
    shortest = FakeGpu(call_ms=1e-6, capturable=False)
    stopwatch(shortest, monkeypatch).sample_ms()
    assert shortest.did.count("call") == MOST_CALLS


def test_what_cannot_be_captured_is_timed_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(call_ms=SHORTEST_SAMPLE_MS / 2, capturable=False)
    watch = stopwatch(gpu, monkeypatch)
    assert watch.sample_ms() == pytest.approx(gpu.call_ms)
    assert "replay" not in gpu.did
