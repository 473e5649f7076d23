from __future__ import annotations

import gc

import pytest
import torch

from tritune.tuning.measure.timing import (
    MOST_CALLS,
    SHORTEST_SAMPLE_MS,
    CpuStopwatch,
    Flush,
    GpuStopwatch,
    calls_for,
    stopwatch,
)


@pytest.fixture(scope="module")
def flush() -> Flush:
    return Flush(torch.device("cpu"))


def test_short_calls_are_repeated_until_a_sample_is_long_enough():
    assert calls_for(SHORTEST_SAMPLE_MS) == 1
    assert calls_for(SHORTEST_SAMPLE_MS / 4) == 4
    assert calls_for(SHORTEST_SAMPLE_MS / 3) == calls_for(SHORTEST_SAMPLE_MS / 2) == 4
    assert calls_for(0.0) == MOST_CALLS


def test_what_a_call_overwrites_is_restored_before_each_sample(flush):
    log: list[str] = []
    x = torch.zeros(1 << 20)

    def call() -> torch.Tensor:
        log.append("call")
        return x.exp_().sin_().cos_()

    watch = CpuStopwatch(call, lambda: log.append("restore"), flush)
    log.clear()
    times = [watch.sample_ms() for _ in range(2)]
    assert all(ms > 0.0 for ms in times)
    assert [log[0], log[len(log) // 2]] == ["restore", "restore"]
    assert log.count("restore") == 2


def test_nothing_is_collected_while_the_clock_runs(flush):
    seen: list[bool] = []
    watch = CpuStopwatch(lambda: seen.append(gc.isenabled()), lambda: None, flush)
    seen.clear()
    watch.sample_ms()
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_the_caches_are_emptied_with_more_than_they_hold(flush):
    from tritune.cpu.launch.runtime import last_level_cache_bytes

    assert flush.nbytes > last_level_cache_bytes()


@pytest.mark.gpu
def test_a_short_kernel_on_a_gpu_is_timed_as_a_graph():
    device = torch.device("cuda")
    x = torch.zeros(1024, device=device)
    watch = GpuStopwatch(lambda: x.add_(1.0), x.zero_, Flush(device))
    times = [watch.sample_ms() for _ in range(5)]
    assert all(0.0 < ms < 1.0 for ms in times)
    assert watch._replay not in (watch._call, watch._repeated)


@pytest.mark.gpu
def test_what_cannot_be_captured_is_timed_between_events():
    device = torch.device("cuda")
    x = torch.zeros(1024, device=device)
    watch = GpuStopwatch(lambda: x.sum().item(), lambda: None, Flush(device))
    assert watch.sample_ms() > 0.0


def test_what_is_compared_has_as_many_calls_in_a_sample() -> None:
    """The first call of a sample finds the caches cold: its share must be the same for all."""
    flush = Flush(torch.device("cpu"))
    first = stopwatch(torch.device("cpu"), lambda: None, lambda: None, flush)
    slow = lambda: sum(range(20_000))  # noqa: E731
    alone = stopwatch(torch.device("cpu"), slow, lambda: None, flush)
    beside = stopwatch(torch.device("cpu"), slow, lambda: None, flush, first.calls)
    assert beside.calls == first.calls == MOST_CALLS
    assert alone.calls < first.calls
