"""`tritune tune` tunes, remembers, resumes, and refuses what it cannot do in one line."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tritune.cli._tune_display import Display, show
from tritune.cli.tune import Result
from tritune.store import Store
from tritune.store.records import Task
from tritune.tuning.job import Outcome, Progress
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.tuning import Tuned

PROBLEM = "rows=16 columns=512 dtype=float32"


def command(*arguments: str, store: Path) -> list[str]:
    where = ["--store", str(store), "-j", "1"]
    return [sys.executable, "-m", "tritune.cli.main", "tune", *arguments, *where]


def tune(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments, store=store), capture_output=True, text=True)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    store = tmp_path_factory.mktemp("tune") / "store.sqlite"
    run = tune("rms_norm", "--problem", PROBLEM, "--json", store=store)
    assert run.returncode == 0, run.stderr
    return store, json.loads(run.stdout)


def test_the_json_says_what_was_measured(first: tuple[Path, dict[str, Any]]) -> None:
    document = first[1]
    assert set(document) == {"device", "ops", "seconds"}
    (row,) = document["ops"]["rms_norm"]
    assert row["problem"] == {"rows": 16, "columns": 512, "dtype": "float32", "adds": False}
    assert row["tuned_ms"] > 0 and row["default_ms"] > 0 and row["vendor_ms"] > 0
    assert set(row["config"]) == {"ROWS", "BLOCK", "STREAM"}
    assert row["trials"] >= 8 and row["failures"] == {}


def test_what_is_known_is_not_measured_again(first: tuple[Path, dict[str, Any]]) -> None:
    store, document = first
    run = tune("rms_norm", "--problem", PROBLEM, store=store)
    assert run.returncode == 0, run.stderr
    assert "everything was known already" in run.stdout
    (row,) = document["ops"]["rms_norm"]
    assert f"ROWS={row['config']['ROWS']} BLOCK={row['config']['BLOCK']}" in run.stdout
    assert "\x1b" not in run.stdout + run.stderr, "no colours and no bars in a pipe"


def test_the_store_has_the_winner_and_its_provenance(first: tuple[Path, dict[str, Any]]) -> None:
    with Store(first[0]) as store:
        (task,) = store.tasks(kernel="rms_norm")
        (run,) = {trial.run for trial in store.trials(task)}
        environment = next(r.environment for r in store.runs() if r.id == run)
        assert store.winner(task) is not None
    assert {"python", "torch", "triton", "tritune"} <= set(environment["versions"])


def test_an_interrupted_run_ends_cleanly_and_goes_on_later(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    run = subprocess.Popen(
        command("silu_mul", "rms_norm", "--model", "llama-3-8b", "--dtype", "float32", store=store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr is not None
    run.stderr.readline()  # one problem is done
    os.kill(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted after" in out and "run it again to go on" in out
    assert "Traceback" not in out + err
    with Store(store) as opened:
        assert opened.tasks()


def test_what_a_busy_machine_left_undecided_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    workload = WORKLOADS["rms_norm"]
    task = Task("rms_norm", "code", "{}", "device")
    busy = Outcome(task, None, 3, 0, {}, None, None, 1.0, busy=True)
    rows = [Tuned(workload, workload.parse("rows=1"), busy)]
    show(Result(2, "a store", rows, seconds=1.0))
    shown = capsys.readouterr().out
    assert "machine busy" in shown
    assert "this machine is busy: other processes disturbed what was measured for 1 of 2" in shown
    assert "nothing was measured" not in shown


def test_a_run_that_waits_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    workload = WORKLOADS["rms_norm"]
    with Display(2, math.inf, quiet=False) as display:
        for _ in range(2):
            display.begin(workload, workload.parse("rows=1"))
            display.update(Progress(0, 1, {}, None, None, None, "waiting", holder=1234))
    assert capsys.readouterr().err.count("waits for process 1234") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("atention",), "no op 'atention' (did you mean attention?); there are: "),
        (("--effort", "ful"), "effort 'ful' (did you mean full?), allowed: quick, normal, full"),
        (("--suite", "norm"), "no suite 'norm' (did you mean norms?)"),
        (("--dtype", "flot32"), "dtype is flot32 (did you mean float32?)"),
        (("--strategy", "radnom"), "strategy 'radnom' (did you mean random?)"),
        (("--recorded",), "no problem is recorded for cpu in "),
        (("linear", "--suite", "norms"), "there is no problem of linear in what was asked for"),
        (("--device", "cdua"), "device 'cdua' (did you mean cuda?), allowed: cpu, cuda, cuda:N"),
        (("--budget", "0"), "budget 0, allowed: more than 0 seconds"),
        (("--model", "llama-99"), "llama-99"),
        (("rms_norm", "--problem", "rowz=3"), "rowz"),
        (("--problem", "rows=3"), "--problem needs exactly one op"),
    ],
)
def test_a_bad_argument_gets_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = tune(*arguments, store=tmp_path / "store.sqlite")
    assert run.returncode == 2
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
