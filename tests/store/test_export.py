"""Exports are readable, diffable and complete; what is imported is checked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.store.made import OTHER_DEVICE, RUN, TASK, build, config, prepared, rounds, trial
from tritune.space import Config
from tritune.store import FormatError, Store, StoreError
from tritune.store.contents import contents
from tritune.store.export import from_document, to_text
from tritune.store.formats.recognise import read
from tritune.store.merge import absorb
from tritune.store.records import Samples
from tritune.store.winners_file import WinnersFile


def fill(store: Store) -> Store:
    prepared(store)
    store.add_trial(trial(config(64), rounds(1.0, 1.1), default=True))
    store.add_trial(trial(config(128), rounds(0.5)))
    store.add_trial(trial(config(32), failure="wrong_result"))
    store.add_build(build(config(64)))
    store.record_problem("matmul", "{}", "gpu", 3)
    return store


def test_a_store_comes_back_whole_from_its_export(store: Store, tmp_path: Path) -> None:
    text = to_text(contents(fill(store)))
    (tmp_path / "export.json").write_text(text)
    name, found = read(tmp_path / "export.json")
    assert name == "tritune"
    with Store(tmp_path / "copy.sqlite") as copy:
        absorb(copy, found, "export.json")
        assert to_text(contents(copy)) == text
        assert copy.winners() == store.winners()


def test_a_config_without_parameters_comes_back(store: Store) -> None:
    prepared(store)
    store.add_trial(trial(Config({}), rounds(1.0)))
    text = to_text(contents(store))
    found = from_document(json.loads(text), "export.json")
    assert [each.config for each in found.trials] == [Config({})]


def test_a_key_that_is_no_text_is_refused_in_one_line() -> None:
    document = json.loads('{"format": "tritune-store", "version": 1, "\\ud800": 1}')
    with pytest.raises(FormatError, match=r"^file\.json: a name holds a character"):
        from_document(document, "file.json")


def test_times_may_be_numpys_numbers(store: Store) -> None:
    prepared(store)
    store.add_trial(trial(config(64), (Samples(RUN.id, "search", 0, (np.float64(1.5), 2.0)),)))
    (found,) = store.trials(TASK)
    assert found.samples[0].times_ms == (1.5, 2.0)


def test_each_trial_has_a_line_of_its_own(file_store: Store) -> None:
    before = to_text(contents(fill(file_store))).splitlines()
    file_store.add_trial(trial(config(16), rounds(4.0)))
    after = to_text(contents(file_store)).splitlines()
    new = [line for line in after if line not in before]
    assert len(new) == 1
    assert '"BLOCK": 16' in new[0]
    assert json.loads("\n".join(after))["format"] == "tritune-store"


def test_one_kernel_can_be_exported_alone(file_store: Store) -> None:
    fill(file_store)
    assert len(contents(file_store, "matmul").trials) == 3
    other = contents(file_store, "norm")
    assert (other.trials, other.runs, dict(other.devices)) == ((), (), {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(version=2), "version 2"),
        (lambda d: d["devices"][0].update(cores="many"), "cores is 'many': Expected `int`"),
        (lambda d: d["devices"][0].update(cores=True), "cores is True"),
        (lambda d: d["devices"][0].update(target="tpu"), "no target"),
        (lambda d: d["devices"].clear(), "which is not there"),
        (lambda d: d["runs"].clear(), "names the run 'run-1'"),
        (lambda d: d["tasks"][0].update(problem="m=1"), "problem is 'm=1': Expected `object`"),
        (lambda d: d["tasks"][0]["trials"][0].pop("config"), "config is None"),
        (lambda d: d["tasks"][0]["trials"][0].update(config={"A": None}), "A=None"),
        (lambda d: d["tasks"][0]["trials"][0].update(failure="oops"), "failure is 'oops'"),
        (lambda d: d["tasks"][0]["trials"][0].update(samples=3), "samples is 3: Expected `array`"),
        (lambda d: d["tasks"][0].update(trials={}), "trials is {}"),
        (lambda d: d.update(builds=[7]), r"builds\[0\] is 7: Expected `object`"),
        (lambda d: d["met"][0].update(count=10**30), "count is 10*: Expected `int` <= 9"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(
    file_store: Store, change: Any, words: str
) -> None:
    parsed = json.loads(to_text(contents(fill(file_store))))
    change(parsed)
    with pytest.raises(FormatError, match=words) as caught:
        from_document(parsed, "file.json")
    assert str(caught.value).startswith("file.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        (b"\x1f\x8b\x08broken", "damaged gzip"),
        (b"[]", "no format that can be imported"),
        (b'{"a": 1}', "no format that can be imported"),
        (b'{"format": "tritune-store"}', "missing required field `version`"),
    ],
)
def test_a_file_that_is_nothing_is_refused_in_one_line(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=words) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_winners_are_written_and_read_back(file_store: Store, tmp_path: Path) -> None:
    fill(file_store)
    path = tmp_path / "winners.json"
    file = WinnersFile.of(file_store.winners(), file_store.devices())
    file.write(path)
    again = WinnersFile.read(path)
    assert again.text() == file.text() == path.read_text()
    (winner,) = again.winners
    assert (winner.task, winner.config, winner.ms, winner.default_ms) == (
        TASK, config(128), 0.5, 1.05,
    )  # fmt: skip
    assert again.devices[TASK.device] == file_store.devices()[TASK.device]


def test_the_code_that_was_tuned_last_is_pinned_for_each_device(file_store: Store) -> None:
    fill(file_store)
    newer = dataclasses.replace(TASK, identity="code-2")
    elsewhere = dataclasses.replace(TASK, device=OTHER_DEVICE.fingerprint)
    file_store.add_trial(trial(config(16), rounds(4.0), task=newer, when="2026-05-01"))
    file_store.add_trial(trial(config(8), rounds(4.0), task=elsewhere))
    file = WinnersFile.of(file_store.winners(), file_store.devices())
    assert {w.task: w.config for w in file.winners} == {newer: config(16), elsewhere: config(8)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w, d: d.update(format="other"), "no file of winners"),
        (lambda w, d: d.update(version=9), "version 9"),
        (lambda w, d: w["winners"][0].update(ms="fast"), "ms is 'fast'"),
        (lambda w, d: w["winners"][0].update(config=[1]), "config is"),
        (lambda w, d: w["winners"].append(w["winners"][0]), "two winners for the problem"),
        (lambda w, d: w["device"].update(cores=1), "the fingerprint is not that of the device"),
    ],
)
def test_a_winners_file_that_makes_no_sense_is_refused(
    file_store: Store, tmp_path: Path, change: Any, words: str
) -> None:
    fill(file_store)
    parsed = json.loads(WinnersFile.of(file_store.winners(), file_store.devices()).text())
    change(parsed["kernels"]["matmul"]["devices"][TASK.device], parsed)
    path = tmp_path / "winners.json"
    path.write_text(json.dumps(parsed))
    with pytest.raises(FormatError, match=words):
        WinnersFile.read(path)


def test_imported_winners_win_until_something_is_measured(
    file_store: Store, tmp_path: Path
) -> None:
    fill(file_store)
    path = tmp_path / "winners.json"
    WinnersFile.of(file_store.winners(), file_store.devices()).write(path)
    name, found = read(path)
    assert name == "tritune winners"
    with Store(tmp_path / "copy.sqlite") as copy:
        absorb(copy, found, path)
        winner = copy.winner(TASK)
        assert winner is not None and (winner.config, winner.ms) == (config(128), 0.5)
        prepared(copy)
        copy.add_trial(trial(config(8), [Samples("run-2", "final", 0, (0.7,))]))
        winner = copy.winner(TASK)
        assert winner is not None and winner.config == config(8)


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(StoreError, match=r"folder\.json cannot be written"):
        WinnersFile((), {}).write(tmp_path / "folder.json")
    assert [each.name for each in tmp_path.iterdir()] == ["folder.json"]
