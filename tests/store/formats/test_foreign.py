"""Other tools' results become trials, and go back to the files they came from."""

from __future__ import annotations

import copy
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.store.formats.excerpts import (
    DEJAVU,
    DEJAVU_FOLDERS,
    DEJAVU_KEY,
    T4,
    VLLM,
    VLLM_NAME,
    write_aotriton,
    write_dejavu,
    write_json,
)
from tests.store.made import config, prepared, rounds, trial
from tritune.space import Config
from tritune.store import FormatError, Store, StoreError
from tritune.store.contents import contents
from tritune.store.decide_winner import Winner
from tritune.store.formats.foreign import literal, named_device
from tritune.store.formats.recognise import WRITERS, files_in, read
from tritune.store.merge import absorb
from tritune.store.verify import verify


def imported(store: Store, path: Path) -> list[Winner]:
    _, found = read(path)
    absorb(store, found, path)
    assert verify(store) == []
    return store.winners()


def test_a_dejavu_cache_is_read(file_store: Store, tmp_path: Path) -> None:
    (winner,) = imported(file_store, write_dejavu(tmp_path))
    assert winner.task.kernel == "fused_add_rmsnorm_triton"
    assert winner.ms == 0.009338859468698502
    assert winner.config["num_warps"] == 32
    assert "maxnreg" not in winner.config
    problem = json.loads(winner.task.problem)
    assert problem["N_SIZE"] == 4096
    assert problem["dtypes"] == ["torch.float16"] * 3
    device = file_store.devices()[winner.task.device]
    assert device.name == "NVIDIA A100-SXM4-80GB"
    assert (str(device.target), device.driver) == ("cuda:80", "CUDA 12.4")


def test_a_dejavu_cache_goes_back_to_its_own_path(file_store: Store, tmp_path: Path) -> None:
    imported(file_store, write_dejavu(tmp_path / "in"))
    (path,) = WRITERS["dejavu"](contents(file_store), tmp_path / "out")
    assert path == tmp_path / "out" / DEJAVU_FOLDERS / "cache.json"
    expected = copy.deepcopy(DEJAVU)
    expected["cache"][DEJAVU_KEY] = str(expected["cache"][DEJAVU_KEY]).removesuffix(
        ", maxnreg: None"
    )
    assert json.loads(path.read_text()) == expected


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1.0, None])
def test_a_failed_config_that_dejavu_let_win_does_not_win_here(
    file_store: Store, tmp_path: Path, time: float | None
) -> None:
    path = write_dejavu(tmp_path)
    write_json(path, {**DEJAVU, "timings": {DEJAVU_KEY: [time]}})
    assert imported(file_store, path) == []
    (task,) = file_store.tasks()
    assert file_store.trials(task)[0].failure == "crash"


def test_a_dejavu_cache_elsewhere_says_too_little(tmp_path: Path) -> None:
    path = write_json(tmp_path / "cache.json", DEJAVU)
    with pytest.raises(FormatError, match="gpu_NAME/KERNEL"):
        read(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cache": {"__import__('os')": "A: 1"}}, "does not fit the keys"),
        ({"cache": {"('1',)": "A: 1"}}, "does not fit the keys"),
        ({"cache": {DEJAVU_KEY: "nonsense"}}, "is no config"),
        ({"cache": {DEJAVU_KEY: 7}}, "is no config"),
        ({"cache": []}, r"cache is \[\]: Expected `object`"),
        ({"keys": "N_SIZE"}, "keys is 'N_SIZE': Expected `array"),
    ],
)
def test_a_dejavu_cache_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = write_dejavu(tmp_path)
    write_json(path, {**DEJAVU, **change})
    with pytest.raises(FormatError, match=words):
        read(path)


def test_tuned_kernels_can_be_written_for_dejavu(file_store: Store, tmp_path: Path) -> None:
    prepared(file_store)
    file_store.add_trial(trial(config(64), rounds(1.5), default=True))
    (path,) = WRITERS["dejavu"](contents(file_store), tmp_path)
    assert "triton_3.7.1" in path.parts
    assert "gpu_Test_CPU" in path.parts
    document = json.loads(path.read_text())
    assert document["keys"] == ["causal", "m"]
    assert document["cache"] == {"('True', '64')": "BLOCK: 64, FAST: True, num_warps: 4"}
    assert document["timings"] == {"('True', '64')": [1.5]}


def test_a_folder_cannot_be_escaped_by_a_name(file_store: Store, tmp_path: Path) -> None:
    path = write_dejavu(tmp_path / "in")
    imported(file_store, path)
    prepared(file_store)
    found = contents(file_store)
    (run,) = [run for run in found.runs if run.environment.get("tool") == "dejavu"]
    folders = run.environment["folders"]
    folders[4], folders[5] = "../../..", "/etc"
    written = WRITERS["dejavu"](found, tmp_path / "out")
    assert all(each.resolve().is_relative_to(tmp_path / "out") for each in written)


def test_vllms_moe_file_is_read_and_written(file_store: Store, tmp_path: Path) -> None:
    winners = imported(file_store, write_json(tmp_path / VLLM_NAME, VLLM))
    assert [json.loads(w.task.problem)["M"] for w in winners] == [1, 16]
    shape = {"E": 8, "N": 14336, "dtype": "fp8_w8a8", "block_shape": [128, 128], "M": 1}
    assert json.loads(winners[0].task.problem) == shape
    assert winners[0].ms is None
    assert winners[0].config == Config.from_json(dict(VLLM["1"]))  # type: ignore[call-overload]
    assert str(file_store.devices()[winners[0].task.device].target) == "cuda:90"
    (path,) = WRITERS["vllm-moe"](contents(file_store), tmp_path / "out")
    assert path.name == VLLM_NAME
    assert json.loads(path.read_text()) == VLLM


@pytest.mark.parametrize(
    ("name", "document", "words"),
    [
        ("E=8,device_name=NVIDIA_H200.json", VLLM, "does not say N"),
        ("E=x,N=7,device_name=NVIDIA_H200.json", VLLM, "E is 'x'"),
        ("E=8,N=7,device_name=Abacus.json", VLLM, "'Abacus' is none that tritune knows"),
        ("E=8,N=7,device_name=NVIDIA_H200.json", {"many": {}}, "'many' is no batch size"),
        ("E=8,N=7,device_name=NVIDIA_H200.json", {"1": 7}, "expected an object"),
        ("E=8,N=7,device_name=NVIDIA_H200.json", {"1": {"BLOCK": [1]}}, "BLOCK"),
    ],
)
def test_a_moe_file_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, document: Any, words: str
) -> None:
    with pytest.raises(FormatError, match=words):
        read(write_json(tmp_path / name, document))


def test_a_store_without_moe_cannot_be_written_for_vllm(file_store: Store, tmp_path: Path) -> None:
    prepared(file_store).add_trial(trial(config(64), rounds(1.0)))
    with pytest.raises(StoreError, match="fields E, N and M"):
        WRITERS["vllm-moe"](contents(file_store), tmp_path)


def test_a_t4_file_is_read_and_written(file_store: Store, tmp_path: Path) -> None:
    path = write_json(tmp_path / "convolution_A100.t4.json", T4)
    (winner,) = imported(file_store, path)
    assert (winner.task.kernel, winner.ms) == ("convolution", 1.6)
    assert [t.failure for t in file_store.trials(winner.task)].count("crash") == 1
    (written,) = WRITERS["t4"](contents(file_store), tmp_path / "out")
    with Store(tmp_path / "copy.sqlite") as copied:
        (again,) = imported(copied, written)
        assert (again.task, again.config, again.ms) == (winner.task, winner.config, 1.6)


@pytest.mark.parametrize(
    "others",
    [
        {"invalidity": "compile", "times": None},
        {"invalidity": "compile", "measurements": [None]},
        {"invalidity": "correct", "times": None},
        {"invalidity": "correct", "times": [1.5]},
        {"config": {"a": [1]}},
    ],
)
def test_what_a_t4_result_does_not_need_may_be_anything(
    file_store: Store, tmp_path: Path, others: dict[str, Any]
) -> None:
    first = T4["results"][0]
    document = {**T4, "results": [first, {**first, "configuration": {"x": 1}, **others}]}
    (winner,) = imported(file_store, write_json(tmp_path / "convolution_A100.t4.json", document))
    assert winner.ms == 1.6
    assert len(file_store.trials(winner.task)) == 2


def test_a_correct_t4_result_without_times_is_refused(tmp_path: Path) -> None:
    result = {"configuration": {"x": 1}, "invalidity": "correct"}
    with pytest.raises(FormatError, match="times is missing"):
        read(write_json(tmp_path / "convolution_A100.t4.json", {**T4, "results": [result]}))


def test_the_problem_survives_t4(file_store: Store, tmp_path: Path) -> None:
    prepared(file_store)
    original = trial(config(64), rounds(1.5))
    file_store.add_trial(original)
    (written,) = WRITERS["t4"](contents(file_store), tmp_path)
    _, found = read(written)
    (again,) = found.trials
    assert (again.task.kernel, again.task.problem) == (original.task.kernel, original.task.problem)
    assert str(found.devices[again.task.device].target) == "cpu:unknown"


def test_a_t4_file_for_an_unknown_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="none that tritune knows"):
        read(write_json(tmp_path / "convolution.json", T4))


@pytest.mark.parametrize("packed", [False, True])
def test_an_aotriton_database_is_read(file_store: Store, tmp_path: Path, packed: bool) -> None:
    path = write_aotriton(tmp_path / "gfx942.sqlite3")
    if packed:
        archive = tmp_path / "gfx942.tar.xz"
        with tarfile.open(archive, "w:xz") as file:
            file.add(path, "../../escape.sqlite3")
        path = archive
    winners = imported(file_store, path)
    assert len(winners) == 2
    assert winners[0].task.kernel == "attn_fwd"
    assert winners[0].config == Config.of(
        PERSISTENT_TYPE=0, BLOCK_M=128, PRE_LOAD_V=1, waves_per_eu=2, num_warps=4
    )
    assert json.loads(winners[0].task.problem)["BLOCK_DMODEL"] == 224
    assert str(file_store.devices()[winners[0].task.device].target) == "hip:gfx942"


def test_a_sqlite_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "store.sqlite").close()
    with pytest.raises(FormatError, match="tritune db merge"):
        read(tmp_path / "store.sqlite")
    damaged = tmp_path / "damaged.sqlite3"
    damaged.write_bytes(b"SQLite format 3\0" + b"\xff" * 2000)
    with pytest.raises(FormatError, match="damaged, or no AOTriton database"):
        read(damaged)
    with tarfile.open(tmp_path / "empty.tar.xz", "w:xz"):
        pass
    with pytest.raises(FormatError, match="expected one SQLite file"):
        read(tmp_path / "empty.tar.xz")


def test_importing_twice_adds_nothing(file_store: Store, tmp_path: Path) -> None:
    path = write_dejavu(tmp_path)
    _, found = read(path)
    absorb(file_store, found, path)
    added = absorb(file_store, found, path)
    assert (added.trials, added.samples, added.runs, added.devices) == (0, 0, 0, 0)


def test_a_folder_is_searched_for_files(tmp_path: Path) -> None:
    path = write_dejavu(tmp_path)
    assert files_in(tmp_path) == [path]
    assert files_in(path) == [path]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(FormatError, match="without JSON files"):
        files_in(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "value"),
    [("32", 32), ("032", "032"), ("0.0", 0.0), ("True", True), ("nan", "nan"), ("x", "x")],
)
def test_a_literal_is_a_value_only_if_its_text_comes_back(text: str, value: object) -> None:
    found = literal(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("NVIDIA H100 80GB HBM3", "cuda:90"),
        ("AMD Instinct MI300X", "hip:gfx942"),
        ("AMD Instinct MI350X", "hip:gfx950"),
        ("NVIDIA Titan Z", "cuda:0"),
        ("AMD EPYC 7763 64-Core Processor", "cpu:unknown"),
    ],
)
def test_devices_are_known_by_their_names(name: str, target: str) -> None:
    assert str(named_device(name, "file").target) == target
