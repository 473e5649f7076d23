"""Who else has the CPUs is seen, sample by sample; what it disturbed decides nothing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.tuning import faulty
from tests.tuning.spinning import beside_a_spinner
from tests.tuning.tasks import TASK, tune
from tritune.space import Listed
from tritune.store import Store
from tritune.store.verify import verify
from tritune.tuning.measure import disturbance
from tritune.tuning.measure.client import PATIENCE, MeasurementClient
from tritune.tuning.measure.disturbance import RunDelay, disturbed, waited_ms
from tritune.tuning.measure.timing import CpuStopwatch, Flush

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this system does not say who waits"
)

#: Longer than any scheduler lets one of two processes have a CPU.
SECONDS = 0.1
LONG, LONGER = faulty.config(repeat=300_000), faulty.config(repeat=400_000)


@pytest.fixture(autouse=True)
def _watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITUNE_BUSY")


def work() -> None:
    begun = time.thread_time()
    while time.thread_time() < begun + SECONDS:
        pass


@pytest.fixture(scope="module")
def flush() -> Flush:
    return Flush(torch.device("cpu"))


def test_a_sample_beside_a_process_that_takes_the_cpu_is_disturbed(flush: Flush) -> None:
    watch = CpuStopwatch(work, lambda: None, flush)
    with beside_a_spinner():
        assert watch.sample().disturbed


def test_on_request_everything_is_believed(flush: Flush, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = CpuStopwatch(work, lambda: None, flush)
    monkeypatch.setenv("TRITUNE_BUSY", "1")
    with beside_a_spinner():
        assert not watch.sample().disturbed


def test_where_nothing_tells_who_waits_nothing_is_disturbed(
    flush: Flush, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disturbance, "_TASKS", str(tmp_path))
    assert RunDelay().read() == {}
    assert not disturbed(waited_ms({}, {}), 1.0)


def test_threads_that_have_ended_are_forgotten() -> None:
    delay, end = RunDelay(), threading.Event()
    thread = threading.Thread(target=end.wait)
    before = delay.read().keys()
    thread.start()
    assert len(delay.read().keys() - before) == 1
    end.set()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass  # the system is a moment behind
    assert delay.read().keys() <= before
    assert len(delay._files) == len(before)


def test_threads_that_wait_together_delay_once_and_new_ones_count() -> None:
    before = {"1": 5_000_000, "2": 0}
    assert waited_ms(before, {"1": 9_000_000, "2": 3_000_000}) == 4.0
    assert waited_ms(before, {"1": 5_000_000, "3": 7_000_000}) == 7.0


def test_a_delay_counts_by_its_share_and_waking_a_thread_is_none() -> None:
    assert not disturbed(0.05, 0.1)
    assert disturbed(0.5, 1.0)
    assert not disturbed(0.5, 100.0)
    assert disturbed(16.0, 16.1)


def test_what_is_disturbed_is_repeated_and_left_out() -> None:
    with beside_a_spinner(), MeasurementClient(faulty.SPEC, timeout_seconds=60.0) as client:
        times = client.time([LONG], rounds=1, keep=[LONG])
        # The scheduler may let a sample pass in between: then the race goes on all the same.
        assert client.disturbed >= PATIENCE
        assert sum(map(len, times[LONG])) < client.disturbed


def test_nothing_is_decided_on_a_busy_machine_and_the_next_run_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_NUM_THREADS", "1")
    with Store(tmp_path / "store.sqlite") as store:
        with beside_a_spinner():
            outcome = tune(store, Listed([LONGER, LONG]), LONGER, build_timeout_seconds=60.0)
        assert outcome.busy
        assert outcome.disturbed > 0
        assert (outcome.winner, store.trials(TASK)) == (None, [])
        monkeypatch.setenv("TRITUNE_BUSY", "1")
        outcome = tune(store, Listed([LONGER, LONG]), LONGER, build_timeout_seconds=60.0)
        assert not outcome.busy
        assert outcome.new_trials == 2
        assert outcome.winner is not None
        assert verify(store) == []


def test_a_shoot_out_that_was_disturbed_is_held_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is over when the machine becomes busy."""
    monkeypatch.setenv("TRITUNE_NUM_THREADS", "1")
    points = Listed([LONGER, LONG])
    with Store(tmp_path / "store.sqlite") as store:
        monkeypatch.setenv("TRITUNE_BUSY", "1")
        with pytest.raises(KeyboardInterrupt):
            tune(store, points, LONGER, watch=_interrupt, build_timeout_seconds=60.0)
        monkeypatch.delenv("TRITUNE_BUSY")
        with beside_a_spinner():
            outcome = tune(store, points, LONGER)
        assert outcome.busy
        assert outcome.new_trials == 0
        assert outcome.winner is not None and outcome.winner.config == LONGER
        assert outcome.winner.tied
        monkeypatch.setenv("TRITUNE_BUSY", "1")
        outcome = tune(store, points, LONGER)
        assert not outcome.busy
        finals = {t.config for t in store.trials(TASK) for s in t.samples if s.stage == "final"}
        assert finals == {LONGER, LONG}


def _interrupt(progress: object) -> None:
    raise KeyboardInterrupt
