"""`tritune db` looks after a store: every command, for people and as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.store.formats.excerpts import VLLM, VLLM_NAME, write_dejavu, write_json
from tests.store.made import OTHER_DEVICE, TASK, config, prepared, rounds, trial
from tritune.cli import db, main
from tritune.policy.learning import saved
from tritune.policy.learning.evidence import Evidence
from tritune.policy.learning.held_out import AgainstDefault, Regret
from tritune.policy.learning.learned import LearnedPolicy
from tritune.store import Store
from tritune.store.contents import contents
from tritune.store.export import to_text
from tritune.store.formats.recognise import WRITERS
from tritune.store.winners_file import WinnersFile


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def tritune(*arguments: object) -> Result:
    """The command in this process: starting Python for each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.main([str(argument) for argument in arguments])
    return Result(status, out.getvalue(), err.getvalue())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    where = tmp_path / "store.sqlite"
    with Store(where) as store:
        prepared(store)
        store.add_trial(trial(config(64), rounds(1.0), default=True))
        store.add_trial(trial(config(128), rounds(0.5)))
        store.add_trial(trial(config(32), failure="wrong_result"))
        store.add_trial(trial(config(16), failure="timeout"))
    return where


def test_ls_lists_tasks_with_their_best(path: Path) -> None:
    found = tritune("db", "ls", "--store", path)
    assert found.status == 0
    assert "causal=true m=64" in found.out
    assert "500 us" in found.out and "2.00x" in found.out
    (task,) = tritune("db", "ls", "--store", path, "--json").document["tasks"]
    assert task["kernel"] == "matmul"
    assert task["problem"] == {"m": 64, "causal": True}
    assert task["device"]["name"] == "Test CPU"
    assert task["trials"] == 4
    assert task["failures"] == {"timeout": 1, "wrong_result": 1}
    assert task["config"] == {"BLOCK": 128, "FAST": True, "num_warps": 4}
    assert (task["best_ms"], task["default_ms"], task["speedup"]) == (0.5, 1.0, 2.0)


def test_show_has_winners_failures_and_what_was_learned(path: Path) -> None:
    found = tritune("db", "show", "matmul", "--store", path)
    assert found.status == 0
    assert "BLOCK=128" in found.out
    assert "2.00x" in found.out
    assert "1 timeout, 1 wrong_result" in found.out
    assert "nothing learned yet" in found.out
    (result,) = tritune("db", "show", "matmul", "--store", path, "--json").document["results"]
    assert result["winners"][0]["speedup"] == 2.0
    assert result["learned"] is None


def test_show_states_the_regret_of_what_was_learned(path: Path) -> None:
    with Store(path) as store:
        learned = LearnedPolicy(
            TASK.kernel, TASK.identity, TASK.device, Evidence([]),
            regret=Regret(0.03, 0.12, 6, 7), held_out=AgainstDefault(3, 0.01),
            problems=7, data="",
        )  # fmt: skip
        saved.save(store, learned)
    found = tritune("db", "show", "matmul", "--store", path)
    assert "mean 3.0%, 95th percentile 12.0%" in found.out
    (result,) = tritune("db", "show", "matmul", "--store", path, "--json").document["results"]
    assert result["learned"]["regret"]["p95"] == 0.12


def test_show_of_an_unknown_kernel_names_the_known_ones(path: Path) -> None:
    found = tritune("db", "show", "matmull", "--store", path)
    assert found.status == 2
    assert "it knows matmul" in found.err
    assert len(found.err.splitlines()) == 1


def test_export_and_import_make_the_same_store(path: Path, tmp_path: Path) -> None:
    exported = tritune("db", "export", "--store", path)
    assert exported.status == 0
    (tmp_path / "export.json").write_text(exported.out)
    done = tritune("db", "import", tmp_path / "export.json", "--store", tmp_path / "copy")
    assert done.status == 0
    assert "added 4 trials" in done.out
    with Store(path) as store, Store(tmp_path / "copy") as copy:
        assert to_text(contents(copy)) == to_text(contents(store)) == exported.out


def test_export_of_winners_is_the_pinned_file(path: Path, tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.json"
    assert tritune("db", "export", "--winners", "-o", pinned, "--store", path).status == 0
    (winner,) = WinnersFile.read(pinned).winners
    assert (winner.task, winner.config) == (TASK, config(128))


def test_formats_of_other_tools_go_in_and_out(tmp_path: Path) -> None:
    store, out = tmp_path / "store.sqlite", tmp_path / "out"
    moe = write_json(tmp_path / VLLM_NAME, VLLM)
    write_dejavu(tmp_path / "caches")
    done = tritune("db", "import", moe, tmp_path / "caches", "--store", store, "--json")
    assert [file["format"] for file in done.document["files"]] == ["vllm-moe", "triton-dejavu"]
    assert tritune("db", "export", "--format", "vllm-moe", "-o", out, "--store", store).status == 0
    assert json.loads((out / VLLM_NAME).read_text()) == VLLM
    one = tmp_path / "one.t4.json"
    done = tritune("db", "export", "--format", "t4", "-o", one, "--store", store)
    assert done.status == 0
    assert json.loads(one.read_text())["results"][0]["invalidity"] == "correct"
    done = tritune("db", "export", "--format", "dejavu", "-o", out, "--store", store)
    assert done.status == 0
    assert len(done.out.splitlines()) == 2
    done = tritune("db", "export", "--format", "dejavu", "-o", one, "--store", store)
    assert done.status == 2
    assert "there are 2 files to write" in done.err


def test_every_format_that_can_be_written_can_be_asked_for() -> None:
    assert set(db.FORMATS) == {"json", "python", *WRITERS}


def test_what_was_learned_is_written_as_python_or_it_says_what_is_missing(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    assert tritune("db", "import", write_dejavu(tmp_path / "caches"), "--store", store).status == 0
    done = tritune("db", "export", "--format", "python", "--store", store)
    assert done.status == 2 and "give --kernel" in done.err
    done = tritune("db", "export", "--format", "python", "--kernel", "attention", "--store", store)
    assert done.status == 2 and "nothing was learned of the kernel 'attention' yet" in done.err


def test_a_bad_file_is_one_line_and_the_others_are_imported(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    store = tmp_path / "store.sqlite"
    good = write_dejavu(tmp_path / "caches")
    done = tritune("db", "import", bad, good, "--store", store)
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert str(bad) in done.err
    assert len(tritune("db", "ls", "--store", store, "--json").document["tasks"]) == 1


def test_merge_adds_another_store(path: Path, tmp_path: Path) -> None:
    into = tmp_path / "into.sqlite"
    assert tritune("db", "merge", path, path, "--store", into).status == 0
    done = tritune("db", "merge", path, "--store", into, "--json")
    assert done.document["merged"][0]["added"]["trials"] == 0
    with Store(path) as store, Store(into) as merged:
        assert to_text(contents(store)) == to_text(contents(merged))


def test_verify_says_that_all_is_well(path: Path) -> None:
    found = tritune("db", "verify", "--store", path)
    assert (found.status, found.out) == (0, f"{path} is sound\n")
    assert tritune("db", "verify", "--store", path, "--json").document["sound"]


def test_verify_prints_every_problem_and_exits_with_1(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE samples SET times_ms = '[-1]'")
        connection.execute(
            "UPDATE devices SET cores = 3 WHERE fingerprint = ?", [OTHER_DEVICE.fingerprint]
        )
    found = tritune("db", "verify", "--store", path)
    assert found.status == 1
    assert len(found.out.splitlines()) == 3
    damaged = path.with_name("damaged")
    damaged.write_bytes(b"no database" * 1000)
    found = tritune("db", "verify", "--store", damaged)
    assert found.status == 1
    assert "damaged" in found.out


def test_a_store_that_cannot_be_used_is_one_line(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99'")
    found = tritune("db", "ls", "--store", path)
    assert found.status == 1
    assert len(found.err.splitlines()) == 1
    assert "schema 99" in found.err


def test_gc_drops_old_code_unless_it_is_a_dry_run(path: Path) -> None:
    arguments = ("db", "gc", "--keep", "0", "--store", path, "--json")
    foretold = tritune(*arguments, "--dry-run").document
    assert foretold["trials"] == 4
    with Store(path) as store:
        assert len(store.tasks()) == 1
    assert tritune(*arguments).document == {**foretold, "dry_run": False}
    with Store(path) as store:
        assert store.tasks() == []
    assert "dropped 0 trials" in tritune("db", "gc", "--store", path).out


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--store", "{folder}/nothing"],
        ["ls", "extra"],
        ["show"],
        ["export", "--format", "xml"],
        ["export", "--format", "t4"],
        ["export", "--format", "t4", "--winners", "-o", "x"],
        ["import"],
        ["import", "{folder}/nothing.json"],
        ["merge", "{folder}/nothing.sqlite"],
        ["gc", "--keep", "-1"],
        ["gc", "--older-than", "soon"],
        ["lst"],
    ],
)
def test_a_bad_argument_gets_one_line_and_exit_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_STORE", str(tmp_path / "store.sqlite"))
    found = tritune("db", *(a.replace("{folder}", str(tmp_path)) for a in arguments))
    assert found.status == 2
    assert found.out == ""
    assert len(found.err.splitlines()) == 1
    assert found.err.startswith("tritune: ")


def test_the_text_for_people_is_plain_when_it_is_not_for_a_terminal(path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tritune.cli.main", "db", "ls"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITUNE_STORE": str(path), "FORCE_COLOR": "", "TERM": "xterm-256color"},
    )
    assert run.returncode == 0
    assert "\x1b" not in run.stdout
    assert "matmul" in run.stdout
