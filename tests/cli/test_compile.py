"""`tritune compile` screens for targets that are not here, and packs what tuning then uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tritune.cli.compile import _tasks
from tritune.targets.target import Target

PROBLEM = "rows=16 columns=512 dtype=float32"


def tritune(
    *arguments: str, cache: Path | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"TRITON_CACHE_DIR": str(cache)} if cache else {})}
    command = [sys.executable, "-m", "tritune.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A pack for this machine's own CPU, and what making it printed."""
    folder = tmp_path_factory.mktemp("pack")
    pack = folder / "rms_norm.pack"
    run = tritune(
        "compile", "rms_norm", "--problem", PROBLEM, "--target", "cpu", "--space", "12", "-j", "1",
        "-o", str(pack), "--store", str(folder / "store.sqlite"), "--json", cache=folder / "cache",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return pack, json.loads(run.stdout)


def test_the_json_counts_what_became_of_the_candidates(packed: tuple[Path, Any]) -> None:
    [(name, counts)] = packed[1]["targets"].items()
    assert name.startswith("cpu:")
    assert set(counts) == {"candidates", "compiled", "rejected", "left", "seconds"}
    assert counts["candidates"] == 12
    assert counts["left"] + sum(counts["rejected"].values()) == 12


def test_tuning_from_a_pack_compiles_nothing(packed: tuple[Path, Any], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = tritune(
        "tune", "--pack", str(packed[0]), "-j", "1", "--store", str(tmp_path / "store.sqlite"),
        "--json", cache=cache,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    [row] = json.loads(run.stdout)["ops"]["rms_norm"]
    assert row["compiles"] == 0
    assert row["failures"] == {} and row["tuned_ms"] > 0
    assert 1 < row["trials"] <= next(iter(packed[1]["targets"].values()))["left"]
    # Whatever process compiles leaves its texts in the cache; what a pack brings are binaries.
    texts = [path for path in cache.rglob("*") if path.suffix in (".source", ".ttir", ".llir")]
    assert texts == []


def test_without_the_pack_the_same_run_would_compile(tmp_path: Path) -> None:
    run = tritune(
        "tune", "rms_norm", "--problem", PROBLEM, "-j", "1", "--store",
        str(tmp_path / "store.sqlite"), "--json", cache=tmp_path / "cache",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    [row] = json.loads(run.stdout)["ops"]["rms_norm"]
    assert row["compiles"] >= row["trials"]


def test_a_damaged_pack_is_refused_in_one_line(packed: tuple[Path, Any], tmp_path: Path) -> None:
    damaged = bytearray(packed[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path = tmp_path / "damaged.pack"
    path.write_bytes(damaged)
    cache = tmp_path / "cache"
    run = tritune("tune", "--pack", str(path), "--store", str(tmp_path / "s"), cache=cache)
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert "damaged.pack is damaged" in line
    assert not cache.exists(), "nothing of it was written"


def test_a_gpu_is_screened_for_without_one_and_a_second_run_compiles_nothing(
    tmp_path: Path,
) -> None:
    arguments = [
        "compile", "rms_norm", "--problem", PROBLEM, "--target", "cuda:80", "--target",
        "hip:gfx942", "--space", "4", "--store", str(tmp_path / "store.sqlite"),
    ]  # fmt: skip
    first = tritune(*arguments)
    assert first.returncode == 0, first.stderr
    header, *rows = first.stdout.splitlines()
    columns = "target problem candidates compiled impossible failed spilling duplicate left seconds"
    assert header.split() == columns.split()
    assert [row.split()[0] for row in rows[:2]] == ["cuda:80", "hip:gfx942"]
    second = json.loads(tritune(*arguments, "--json").stdout)["targets"]
    assert set(second) == {"cuda:80", "hip:gfx942"}
    for counts in second.values():
        assert counts["compiled"] == counts["candidates"] == 4


def test_a_models_problems_have_the_dtype_it_is_served_in(tmp_path: Path) -> None:
    targets = [Target.parse("cuda:80"), Target.parse("hip:gfx942"), Target.parse("cpu:generic")]
    tasks = _tasks("rms_norm", [], "llama-3-8b", None, "quick", targets)
    kinds = {(each.target.family, each.problem.dtype) for each in tasks}
    assert kinds == {("cuda", "bfloat16"), ("hip", "bfloat16"), ("cpu", "float32")}
    more = _tasks("rms_norm", [], "llama-3-8b", "float16", "normal", targets[:1])
    assert {each.problem.dtype for each in more} == {"float16"}
    assert len(more) > len(tasks) / 3


def test_a_config_is_explained(tmp_path: Path) -> None:
    run = tritune(
        "compile", "attention", "--problem", "queries=64 heads=2 group=1 head_size=32", "--target",
        "cuda:80", "--explain", "BLOCK_N=32 num_stages=1", "--store", str(tmp_path / "s.sqlite"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "BLOCK_N=32" in run.stdout and "worth measuring" in run.stdout
    assert "registers" in run.stdout and "occupancy" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no_such_op", "--target", "cuda:80"], "no_such_op"),
        (["attention", "--target", "cuda:12"], "nothing is known of cuda:12"),
        (["attention", "--target", "tpu:1"], "'tpu:1' is no target"),
        (["attention", "--target", "cuda:80", "--space", "some"], "allowed: full, or a number"),
        (["attention", "--target", "cuda:80", "-j", "0"], "jobs 0"),
        (["attention", "--target", "cuda:80", "--explain", "BLOCK_Q=1"], "there is no BLOCK_Q"),
        (["attention"], "--target"),
        (["attention", "--target", "cuda:80", "--dtype", "float16"], "--dtype is of a model's"),
        (["attention", "--target", "cuda:80", "--model", "gpt-1"], "gpt-1"),
        (["rope", "--target", "cpu:pdp11"], "unknown CPU architecture 'pdp11'"),
        (["rope", "--target", "cpu:x86-64-v5"], "'x86-64-v5' (did you mean x86-64-v"),
        (["rope", "--target", "cdua:90"], "'cdua:90' is no target (did you mean cuda?)"),
        (["rope", "--target", "cuda:9"], "nothing is known of cuda:9 (did you mean cuda:90?)"),
        (["rope", "--target", "cuda:80", "-o", "."], "is a folder, and a pack is a file"),
        (["rope", "--target", "cuda:80", "-o", "/dev/null/a.pack"], "a.pack cannot be written"),
        (["rope", "--target", "cuda:80", "--explain", "", "--json"], "--explain is for people"),
    ],
    ids=[
        "op",
        "arch",
        "family",
        "space",
        "jobs",
        "explain",
        "no-target",
        "dtype",
        "model",
        "cpu",
        "like-a-cpu",
        "like-a-family",
        "like-an-arch",
        "folder",
        "unwritable",
        "explain-json",
    ],
)
def test_a_bad_argument_gets_one_line_and_status_2(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    run = tritune("compile", *arguments, "--store", str(tmp_path / "store.sqlite"))
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert says in line
