from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.tuning.faulty import SPEC, config
from tritune.errors import TrituneError
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.measure.client import Bench

GOOD, SLOW = config(), config(repeat=200_000)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench(SPEC, timeout_seconds=30.0) as bench:
        yield bench


def test_every_entry_has_its_samples_of_every_round(bench):
    other = config(repeat=2)
    times = bench.time([GOOD, other], rounds=3, samples_per_round=2, keep=[GOOD, other])
    assert set(times) == {GOOD, other}
    assert all([len(samples) for samples in rounds] == [2, 2, 2] for rounds in times.values())
    assert all(ms > 0.0 for rounds in times.values() for samples in rounds for ms in samples)


def test_a_config_that_is_much_slower_leaves_the_race(bench):
    times = bench.time([GOOD, SLOW], rounds=6, keep=[GOOD])
    assert len(times[GOOD]) == 6
    assert len(times[SLOW]) < 6


def test_the_vendor_races_by_name(bench):
    names = [f"vendor:{name}" for name in bench.vendors()]
    assert names == ["vendor:torch", "vendor:wrong"]
    bench.verify(GOOD)
    times = bench.time([GOOD, *names], rounds=2, keep=names)
    assert [len(samples) for samples in times["vendor:torch"]] == [3, 3]


def test_a_vendor_with_a_wrong_result_is_not_timed(bench):
    bench.verify(GOOD)
    times = bench.time([GOOD, "vendor:wrong"], rounds=1)
    assert set(times) == {GOOD}
    assert "wrong gives wrong results" in bench.failures["vendor:wrong"].message


def test_a_name_that_is_nobodys_is_an_error(bench):
    with pytest.raises(TrituneError, match="vendor:NAME"):
        bench.time(["torch"], rounds=1)


def test_a_race_without_budget_ends_after_one_round(bench):
    times = bench.time([GOOD], rounds=1000, budget_seconds=0.0)
    assert len(times[GOOD]) == 1


def test_the_second_half_is_measured_in_another_process_if_asked_for(bench, monkeypatch):
    pids = []
    part = bench._part_of_round

    def watched(*arguments):
        left = part(*arguments)
        pids.append(bench._worker.pid)
        return left

    monkeypatch.setattr(bench, "_part_of_round", watched)
    times = bench.time([GOOD], rounds=4, two_processes=True)
    assert len(times[GOOD]) == 4
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_rounds_that_are_needed_are_run_whatever_the_budget(bench):
    times = bench.time([GOOD], rounds=1000, budget_seconds=0.0, least_rounds=3)
    assert len(times[GOOD]) == 3


def test_what_was_built_is_not_compiled_again_to_be_verified(fresh_triton_cache):
    with CompilePool(SPEC.to_json(), jobs=1) as pool, Bench(SPEC) as bench:
        pool.submit([GOOD])
        assert pool.result(60.0).failure is None
        built = sorted(os.walk(fresh_triton_cache))
        assert bench.verify(GOOD) is None
        assert sorted(os.walk(fresh_triton_cache)) == built


def test_without_a_reference_the_default_config_decides():
    spec = CaseSpec(SPEC.factory, {"knows": False})
    with Bench(spec, default=GOOD) as bench:
        assert bench.verify(config(repeat=2)) is None
        assert bench.verify(config("wrong")).reason == "wrong_result"


def test_what_is_right_is_worked_out_once_whatever_happens_to_the_process(tmp_path):
    log = tmp_path / "worked-out"
    with Bench(CaseSpec(SPEC.factory, {"log": str(log)})) as bench:
        assert bench.verify(config("segfaults")).reason == "crash"
        assert bench.verify(config("wrong")).reason == "wrong_result"
        assert bench.verify(GOOD) is None
    assert log.read_text() == "worked out\n"


def test_a_bench_that_turns_to_another_case_works_out_again_what_is_right(tmp_path):
    logs = [tmp_path / "first", tmp_path / "second"]
    specs = [CaseSpec(SPEC.factory, {"log": str(log)}) for log in logs]
    with Bench(specs[0]) as bench:
        assert bench.verify(GOOD) is None
        pid = bench._worker.pid
        bench.turn_to(specs[1])
        assert bench.verify(GOOD) is None
        assert bench.verify(config("wrong")).reason == "wrong_result"
        assert bench._worker.pid == pid
    assert [log.read_text() for log in logs] == ["worked out\n"] * 2


def test_a_process_in_which_a_config_misbehaved_does_not_serve_another_case():
    with Bench(SPEC) as bench:
        assert bench.verify(config("wrong")).reason == "wrong_result"
        pid = bench._worker.pid
        bench.turn_to(CaseSpec(SPEC.factory, {"knows": False}), default=GOOD)
        assert config("wrong") not in bench.failures
        assert bench.verify(GOOD) is None
        assert bench._worker.pid != pid


def test_a_death_is_blamed_on_a_config_only_if_it_dies_alone_too():
    # The first one leaves something behind that kills whatever runs next in its process.
    with Bench(SPEC, timeout_seconds=30.0) as bench:
        assert bench.verify(config("undermines the process")) is None
        assert bench.verify(GOOD) is None


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Bench(SPEC):
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())
