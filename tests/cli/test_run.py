"""`tritune run` runs a program as Python does, and its kernels are tuned once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tritune.cli.main", "run"]
#: Without what needs torch, for tests of the command itself.
BARE = ("--no-autotune", "--no-integrations")


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


PROGRAM = """
import pickle, sys
import beside

class Thing:
    pass

print(__name__, __file__, __spec__ and __spec__.name, sys.argv[1:], beside.VALUE)
print(type(pickle.loads(pickle.dumps(Thing()))).__name__, sys.modules["__main__"].Thing is Thing)
if "fail" in sys.argv:
    raise KeyError("no such thing")
sys.exit("the end" if "message" in sys.argv else 7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for place in (tmp_path / "program.py", package / "__main__.py", package / "part.py"):
        place.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("VALUE = 42\n")
    return tmp_path


@pytest.mark.parametrize(
    ("how", "file", "spec"),
    [
        (["program.py"], "program.py", None),
        (["-m", "package"], "package/__main__.py", "package.__main__"),
        (["-m", "package.part"], "package/part.py", "package.part"),
    ],
    ids=["script", "package", "module"],
)
def test_a_program_finds_everything_as_under_python(
    how: list[str], file: str, spec: str | None, folder: Path
) -> None:
    arguments = [*how, "--record", "-m", "--", "x"]
    done = run(*BARE, *arguments, cwd=folder)
    plain = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (plain.stdout, 7), done.stderr
    assert done.stdout.startswith(f"__main__ {folder / file} {spec} ")


def test_an_error_is_shown_as_python_shows_it(folder: Path) -> None:
    done = run(*BARE, "program.py", "fail", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n  File ")
    assert done.stderr.endswith("KeyError: 'no such thing'\n")
    assert "tritune" not in done.stderr


def test_the_last_words_of_a_program_are_kept(folder: Path) -> None:
    done = run(*BARE, "program.py", "message", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "the end\n")


def test_children_inherit_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os; print(*(os.environ.get('TRITUNE_' + n) for n in ('AUTOTUNE', 'MODE', 'STORE')))"
    )
    done = run("--no-integrations", "--serve", "--store", "s", "program.py", cwd=tmp_path)
    assert done.stdout.split() == ["serve", "None", "s"], done.stderr
    done = run(*BARE, "--record", "program.py", cwd=tmp_path, TRITUNE_STORE="t")
    assert done.stdout.split() == ["0", "record", "t"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py"], "nowhere.py cannot be run: No such file"),
        (["-m", "no_such_module"], "no_such_module cannot be run: there is no such module"),
        (["--record", "--serve", "beside.py"], "exclude each other"),
        (["broken.py"], "broken.py is no Python program"),
    ],
    ids=["file", "module", "modes", "syntax"],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, folder: Path) -> None:
    (folder / "broken.py").write_text("def (:\n")
    done = run(*BARE, *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_the_second_start_tunes_and_compiles_nothing() -> None:
    benchmark = ROOT / "benchmarks" / "autotune_start.py"
    done = subprocess.run(
        [sys.executable, str(benchmark), "--kernels", "2", "--no-plain", "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    starts = json.loads(done.stdout)["starts"]
    first, second = starts["tritune run, first start"], starts["tritune run, second start"]
    assert first["trials"] == 12
    assert (second["trials"], second["compiled"]) == (0, 0)


RECORDED = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 512)], key=["n"])
@triton.jit
def gather(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(index + at, at < n, other=0)
    tl.store(out + at, tl.load(x + place, at < n), at < n)

n = 3000
x, index, out = torch.randn(n), torch.randperm(n), torch.zeros(n)
gather[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, index, out, n)
assert torch.equal(out, x[index])
print(gather.best_config.kwargs["BLOCK"], hasattr(gather, "configs_timings"))
"""


def test_what_was_recorded_is_tuned_later(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RECORDED)
    only = ("--no-integrations", "program.py")
    store = {"TRITUNE_STORE": str(tmp_path / "store.sqlite")}
    done = run("--record", *only, cwd=tmp_path, **store)
    assert done.stdout == "64 False\n", done.stderr
    # Elsewhere: in another process, without the program.
    (tmp_path / "program.py").rename(tmp_path / "moved.py")
    tune = [sys.executable, "-m", "tritune.cli.main", "tune", "--recorded", "--json", "-j", "1"]
    tuned = subprocess.run(tune, env={**os.environ, **store}, capture_output=True, text=True)
    assert tuned.returncode == 0, tuned.stderr
    (row,) = json.loads(tuned.stdout)["ops"]["program.gather"]
    assert row["new_trials"] == 2 and row["failures"] == {}
    (tmp_path / "moved.py").rename(tmp_path / "program.py")
    done = run(*only, cwd=tmp_path, **store)
    assert done.stdout == f"{row['config']['BLOCK']} True\n", done.stderr
