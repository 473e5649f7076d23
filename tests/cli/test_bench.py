"""`tritune bench` measures what it is asked for, and refuses the rest in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policy.stored import config, problem, put
from tritune.cli.main import main

PROBLEM = ["rms_norm", "--problem", "rows=8 columns=64 dtype=float32", "--seconds", "0.01"]


def test_the_json_has_everything_that_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    assert main(["bench", *PROBLEM, "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert set(document) == {"device", "versions", "libraries", "limits", "rows", "summary"}
    (row,) = document["rows"]
    assert {
        "op", "problem", "dtype", "config", "ours_ms", "default_ms", "vendor_ms", "vendor",
        "libraries_ms", "failed", "ratio", "limit", "limit_fraction",
    } <= set(row)  # fmt: skip
    assert document["summary"]["min_ratio"] == row["ratio"]
    assert "geometric mean" in capsys.readouterr().out


def test_json_goes_to_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *PROBLEM, "--against", "default", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["vendor"] is None


def test_winners_come_from_the_store_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    winner = config(2, 32)
    put(path, {problem(8, 64): {winner: 1.0}})
    command = ["bench", *PROBLEM, "--against", "default", "--json", "-", "--store", str(path)]
    finished = subprocess.run(
        [sys.executable, "-m", "tritune.cli.main", *command], capture_output=True, text=True
    )
    (row,) = json.loads(finished.stdout)["rows"]
    assert row["config"] == winner.as_kwargs()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--suite", "nosuch"], "no suite 'nosuch'"),
        (["nosuch"], "no op 'nosuch'"),
        (["--problem", "rows=1"], "exactly one op"),
        (["rope", "--suite", "linear"], "no problem of rope"),
        (["--against", "zentorh"], "did you mean zentorch?), allowed: vendor, default, torch"),
        (["--seconds", "0"], "more than 0"),
        (["rms_norm", "--problem", "rows=0"], "rows"),
        (["--store", "nowhere/store.sqlite"], "there is no store at nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.strip().splitlines()) == 1
