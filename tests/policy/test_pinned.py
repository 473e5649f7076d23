"""Pinned mode: a reviewed file answers, the same in every process; ranks can make sure of it."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.policy.stored import CPU, config, many_problems, problem, put
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import config_for, mode, verify_agreement
from tritune.policy.agreement import DisagreementError, disagreements
from tritune.policy.modes import Mode
from tritune.policy.pinned import PinnedSource
from tritune.policy.policy import Policy
from tritune.policy.sources import PolicyWarning
from tritune.store import FormatError, Store
from tritune.store.winners_file import WinnersFile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reviewed(tmp_path: Path) -> Path:
    """A file of winners for 20 problems, exported from a store that is not the one in use."""
    configs = [config(1, 128), config(2, 512), config(4, 256), config(8, 64)]
    known = [p for p in many_problems(1000)[::50] if p.rows >= 8]
    return export(tmp_path, {p: {configs[i % 4]: 1.0} for i, p in enumerate(known)})


def export(folder: Path, results: dict[Any, Any], **other: str) -> Path:
    put(folder / "reviewed.sqlite", results, **other)
    with Store(folder / "reviewed.sqlite") as store:
        WinnersFile.of(store.winners(), store.devices()).write(folder / "winners.json")
    return folder / "winners.json"


CHOOSE = """
import json
from tests.policy.stored import CPU, many_problems
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import answer_for
answers = [answer_for(KERNEL, one, CPU) for one in many_problems(1000)]
print(json.dumps([[answer.source, answer.config.to_json()] for answer in answers]))
"""


def test_two_processes_choose_identical_configs_for_a_thousand_problems(
    reviewed: Path, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_MODE", "pinned")
    monkeypatch.setenv("TRITUNE_PINNED", str(reviewed))
    running = []
    for seed, in_store in (("1", config(1, 16)), ("2", config(1, 32))):
        # Neither the store, which differs, nor the order of hashes may have a say.
        path = store_path.with_name(f"store-{seed}.sqlite")
        put(path, {one: {in_store: 1.0} for one in many_problems(10)})
        monkeypatch.setenv("TRITUNE_STORE", str(path))
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        command = [sys.executable, "-c", CHOOSE]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
    chosen = [each.communicate()[0] for each in running]
    assert chosen[0] == chosen[1]
    sources = [source for source, _ in json.loads(chosen[0])]
    assert len(sources) == 1000
    # What the file does not name runs with the default, which is the same everywhere too.
    assert set(sources) == {"exact", "default"}


def test_the_store_has_no_say(reviewed: Path, store_path: Path) -> None:
    known = next(p for p in many_problems(1000)[::50] if p.rows >= 8)
    put(store_path, {known: {config(4, 64): 1.0}})
    assert config_for(KERNEL, known, CPU) == config(4, 64).as_kwargs()
    with mode("pinned", pinned=reviewed):
        assert config_for(KERNEL, known, CPU) == config(1, 128).as_kwargs()
    assert config_for(KERNEL, known, CPU) == config(4, 64).as_kwargs()


def test_serve_mode_warms_up_from_the_file_if_there_is_one(
    reviewed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune.policy import answer_for, warm

    monkeypatch.setenv("TRITUNE_PINNED", str(reviewed))
    known = next(p for p in many_problems(1000)[::50] if p.rows >= 8)
    with mode("serve"), warm():
        assert answer_for(KERNEL, known, CPU).config == config(1, 128)


def test_a_file_is_obeyed_with_a_warning_when_the_code_has_changed(tmp_path: Path) -> None:
    path = export(tmp_path, {problem(): {config(2, 512): 1.0}}, identity="before the review")
    policy = Policy(Mode("pinned", str(path)))
    with pytest.warns(PolicyWarning, match="has changed since this file was written"):
        assert policy.config_for(KERNEL, problem(), CPU) == config(2, 512).as_kwargs()


def test_a_device_with_another_driver_is_answered_for_and_another_device_is_not(
    tmp_path: Path,
) -> None:
    path = export(tmp_path, {problem(): {config(2, 512): 1.0}})
    file = WinnersFile.read(path)
    (device,) = file.devices.values()
    for change, warning, expected in (
        ({"driver": "of last year"}, "reviewed with other cores, memory or driver", "exact"),
        ({"name": "another CPU"}, "has nothing for rms_norm", "default"),
    ):
        other = dataclasses.replace(device, **change)
        winners = [
            dataclasses.replace(w, task=dataclasses.replace(w.task, device=other.fingerprint))
            for w in file.winners
        ]
        WinnersFile.of(winners, {other.fingerprint: other}).write(path)
        policy = Policy(Mode("pinned", str(path)))
        with pytest.warns(PolicyWarning, match=warning):
            assert policy.answer_for(KERNEL, problem(), CPU).source == expected


def test_a_file_that_makes_no_sense_is_refused_when_the_mode_is_entered(tmp_path: Path) -> None:
    path = tmp_path / "winners.json"
    path.write_text("{}")
    with pytest.raises(FormatError, match=r"winners\.json"):
        mode("pinned", pinned=path)
    assert mode() == "default"


def test_the_digest_is_that_of_the_answers_and_not_of_the_spelling(
    reviewed: Path, tmp_path: Path
) -> None:
    document = json.loads(reviewed.read_text())
    spelled = tmp_path / "spelled.json"
    spelled.write_text(json.dumps(document, indent=4))
    assert PinnedSource(spelled).digest() == PinnedSource(reviewed).digest()
    for entry in document["kernels"]["rms_norm"]["devices"].values():
        entry["winners"][0]["config"]["ROWS"] = 64
    spelled.write_text(json.dumps(document))
    assert PinnedSource(spelled).digest() != PinnedSource(reviewed).digest()


def test_alone_there_is_nobody_to_disagree_with() -> None:
    verify_agreement()


def test_every_disagreement_is_named() -> None:
    same = {"mode": "pinned", "pinned": "abc", "answers": {"k p": {"A": 1}}}
    assert disagreements([same, {**same, "answers": {"k q": {"A": 2}}}]) == []
    reasons = disagreements([same, {**same, "pinned": "abd", "answers": {"k p": {"A": 2}}}])
    assert reasons == [
        "rank 1: pinned is 'abd', on rank 0 'abc'",
        "k p: rank 1 uses {'A': 2}, rank 0 {'A': 1}",
    ]


def _rank(rank: int, meeting: str, files: list[str], results: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    said = []
    for path in (files[0], files[rank]):
        mode("pinned", pinned=path)
        config_for(KERNEL, problem(), CPU)
        try:
            verify_agreement()
        except DisagreementError as error:
            said.append(str(error))
        else:
            said.append("agreed")
    results.put(said)
    dist.destroy_process_group()


def test_ranks_find_out_whether_they_agree(tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        files.append(str(export(folder, {problem(): {config(2, 512 >> rank): 1.0}})))
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    ranks = [
        spawn.Process(target=_rank, args=(rank, str(tmp_path / "meeting"), files, results))
        for rank in range(2)
    ]
    for each in ranks:
        each.start()
    said = [results.get(timeout=240) for _ in ranks]
    for each in ranks:
        each.join()
    assert [first for first, _ in said] == ["agreed", "agreed"]
    assert all("rank 1 uses" in second and "'BLOCK': 256" in second for _, second in said)
