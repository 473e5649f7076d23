"""`tritune new` writes a kernel that passes its tests and its benchmark at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritune.cli.main import main
from tritune.store import Store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new")
    assert main(["new", "row_softmax", "--into", str(folder)]) == 0
    return folder


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITUNE_STORE": str(folder / "store.sqlite")}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_the_folder_has_all_that_a_kernel_needs(folder: Path) -> None:
    names = sorted(path.name for path in (folder / "row_softmax").iterdir())
    assert names == [
        "__init__.py",
        "benchmark.py",
        "kernel.py",
        "op.py",
        "reference.py",
        "test_row_softmax.py",
    ]
    assert not any("KERNEL" in (folder / "row_softmax" / name).read_text() for name in names)


def test_its_tests_pass(folder: Path) -> None:
    done = run("pytest", "-q", "-p", "no:cacheprovider", "row_softmax", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "warning" not in done.stdout


def test_its_benchmark_tunes_and_measures(folder: Path) -> None:
    done = run("row_softmax.benchmark", "--rows", "64", "--columns", "200", folder=folder)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert head.split() == ["rows", "row_softmax", "us", "torch", "us", "speed-up"]
    assert int(row.split()[0]) == 64 and float(row.split()[1]) > 0
    with Store(folder / "store.sqlite") as store:
        (task,) = store.tasks()
        assert task.kernel == "row_softmax.kernel.kernel"
        assert not any(trial.failure for trial in store.trials(task))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two words", "no Python name"),
        ("class", "no Python name"),
        ("row_softmax", "exists"),
        ("torch", "'torch' is a module already"),
        ("tritune", "'tritune' is a module already"),
        ("json", "'json' is a module already"),
        ("antigravity", "'antigravity' is a module already"),
    ],
)
def test_mistakes_are_one_line(
    name: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--into", str(folder)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["row_softmax"]
