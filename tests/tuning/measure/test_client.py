from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.tuning.faulty import SPEC, config
from tritune.errors import TrituneError
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.measure.client import MeasurementClient

GOOD, SLOW = config(), config(repeat=200_000)


@pytest.fixture(scope="module")
def client() -> Iterator[MeasurementClient]:
    with MeasurementClient(SPEC, timeout_seconds=30.0) as client:
        yield client


def test_every_entry_has_its_samples_of_every_round(client):
    other = config(repeat=2)
    times = client.time([GOOD, other], rounds=3, samples_per_round=2, keep=[GOOD, other])
    assert set(times) == {GOOD, other}
    assert all([len(samples) for samples in rounds] == [2, 2, 2] for rounds in times.values())
    assert all(ms > 0.0 for rounds in times.values() for samples in rounds for ms in samples)


def test_a_config_that_is_much_slower_leaves_the_race(client):
    times = client.time([GOOD, SLOW], rounds=6, keep=[GOOD])
    assert len(times[GOOD]) == 6
    assert len(times[SLOW]) < 6


def test_the_vendor_races_by_name(client):
    names = [f"vendor:{name}" for name in client.vendors()]
    assert names == ["vendor:torch", "vendor:wrong"]
    client.verify(GOOD)
    times = client.time([GOOD, *names], rounds=2, keep=names)
    assert [len(samples) for samples in times["vendor:torch"]] == [3, 3]


def test_a_vendor_with_a_wrong_result_is_not_timed(client):
    client.verify(GOOD)
    times = client.time([GOOD, "vendor:wrong"], rounds=1)
    assert set(times) == {GOOD}
    assert "wrong gives wrong results" in client.failures["vendor:wrong"].message


def test_a_name_that_is_nobodys_is_an_error(client):
    with pytest.raises(TrituneError, match="vendor:NAME"):
        client.time(["torch"], rounds=1)


def test_a_race_without_budget_ends_after_one_round(client):
    times = client.time([GOOD], rounds=1000, budget_seconds=0.0)
    assert len(times[GOOD]) == 1


def test_the_second_half_is_measured_in_another_process_if_asked_for(client, monkeypatch):
    pids = []
    part = client._part_of_round

    def watched(*arguments):
        left = part(*arguments)
        pids.append(client._worker.pid)
        return left

    monkeypatch.setattr(client, "_part_of_round", watched)
    times = client.time([GOOD], rounds=4, two_processes=True)
    assert len(times[GOOD]) == 4
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_rounds_that_are_needed_are_run_whatever_the_budget(client):
    times = client.time([GOOD], rounds=1000, budget_seconds=0.0, least_rounds=3)
    assert len(times[GOOD]) == 3


def test_what_was_built_is_not_compiled_again_to_be_verified(fresh_triton_cache):
    with CompilePool(SPEC.to_json(), jobs=1) as pool, MeasurementClient(SPEC) as client:
        pool.submit([GOOD])
        assert pool.result(60.0).failure is None
        built = sorted(os.walk(fresh_triton_cache))
        assert client.verify(GOOD) is None
        assert sorted(os.walk(fresh_triton_cache)) == built


def test_without_a_reference_the_default_config_decides():
    spec = CaseSpec(SPEC.factory, {"knows": False})
    with MeasurementClient(spec, default=GOOD) as client:
        assert client.verify(config(repeat=2)) is None
        assert client.verify(config("wrong")).reason == "wrong_result"


def test_what_is_right_is_worked_out_once_whatever_happens_to_the_process(tmp_path):
    log = tmp_path / "worked-out"
    with MeasurementClient(CaseSpec(SPEC.factory, {"log": str(log)})) as client:
        assert client.verify(config("segfaults")).reason == "crash"
        assert client.verify(config("wrong")).reason == "wrong_result"
        assert client.verify(GOOD) is None
    assert log.read_text() == "worked out\n"


def test_a_bench_that_turns_to_another_case_works_out_again_what_is_right(tmp_path):
    logs = [tmp_path / "first", tmp_path / "second"]
    specs = [CaseSpec(SPEC.factory, {"log": str(log)}) for log in logs]
    with MeasurementClient(specs[0]) as client:
        assert client.verify(GOOD) is None
        pid = client._worker.pid
        client.switch_to(specs[1])
        assert client.verify(GOOD) is None
        assert client.verify(config("wrong")).reason == "wrong_result"
        assert client._worker.pid == pid
    assert [log.read_text() for log in logs] == ["worked out\n"] * 2


def test_a_process_in_which_a_config_misbehaved_does_not_serve_another_case():
    with MeasurementClient(SPEC) as client:
        assert client.verify(config("wrong")).reason == "wrong_result"
        pid = client._worker.pid
        client.switch_to(CaseSpec(SPEC.factory, {"knows": False}), default=GOOD)
        assert config("wrong") not in client.failures
        assert client.verify(GOOD) is None
        assert client._worker.pid != pid


def test_a_death_is_blamed_on_a_config_only_if_it_dies_alone_too():
    # The first one leaves something behind that kills whatever runs next in its process.
    with MeasurementClient(SPEC, timeout_seconds=30.0) as client:
        assert client.verify(config("undermines the process")) is None
        assert client.verify(GOOD) is None


def test_nothing_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with MeasurementClient(SPEC):
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())
