"""`tritune run` runs a program as Python does, and its kernels are tuned once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritune.cli._run_report import report
from tritune.tuning.autotune.run_log import SKIPPED, STORED, TUNED, UNTUNED, Event

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
sys.exit(7)
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


#: How a program can end. Python says what is right.
ENDS = {
    "syntax error": "x = 1\ndef (:\n    pass\n",
    "indentation error": "if 1:\nx\n",
    "unreadable text": b"name = '\xff'\n",
    "error": "def f():\n    raise KeyError('no such thing')\nf()",
    "cause": "try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('x') from error",
    "notes": "error = ValueError('x')\nerror.__notes__ = ['look here']\nraise error",
    "last words": "import sys; sys.exit('the end')",
    "exit status": "import sys; sys.exit(300)",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)",
    "error of a command line": "import typer; raise typer.BadParameter('x')",
    "exit of a command line": "import typer; raise typer.Exit(3)",
    "error of tritune": "from tritune import TrituneError; raise TrituneError('x')",
    "broken pipe": "raise BrokenPipeError(32, 'x')",
    "own hook": "import sys\n"
    "sys.excepthook = lambda kind, error, trace: print(kind, trace.tb_lineno, trace.tb_next)\n"
    "raise ValueError",
    "last wish": "import atexit; atexit.register(print, 'late'); raise ValueError",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_under_python(end: str, tmp_path: Path) -> None:
    source = ENDS[end]
    (tmp_path / "a.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    done = run(*BARE, "./a.py", cwd=tmp_path)
    plain = subprocess.run([sys.executable, "./a.py"], cwd=tmp_path, capture_output=True, text=True)
    if end == "unreadable text":  # Python reads files and texts with different words for this
        assert plain.returncode == done.returncode == 1
        assert "SyntaxError: (unicode error)" in done.stderr and "tritune" not in done.stderr
        return
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    assert done.returncode == plain.returncode


def test_a_program_may_come_from_standard_input(folder: Path) -> None:
    arguments = ["-", "x"]
    feed = {"cwd": folder, "input": PROGRAM, "capture_output": True, "text": True}
    done = subprocess.run([*COMMAND, *BARE, *arguments], **feed)
    plain = subprocess.run([sys.executable, *arguments], **feed)
    assert (done.stdout, done.returncode) == (plain.stdout, 7), done.stderr


def test_a_module_that_lacks_another_says_which(folder: Path) -> None:
    (folder / "package" / "__init__.py").write_text("import no_such_module\n")
    done = run(*BARE, "-m", "package.part", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")
    assert "tritune" not in done.stderr


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
    ],
    ids=["file", "module", "modes"],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, folder: Path) -> None:
    done = run(*BARE, *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


CHILDREN = """
import multiprocessing, subprocess, sys, torch
from torch.nn import functional

def show(how):
    print(how, functional.scaled_dot_product_attention.__module__, sys.customized, flush=True)

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=show, args=(method,))
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", f"from {__spec__.name} import show; show('python')"])
"""
ROUTED = "tritune.integrations.sdpa"
METHODS = ("fork", "spawn", "python")


@pytest.fixture
def children(tmp_path: Path) -> Path:
    """A program with children, on a machine that has a sitecustomize of its own."""
    (tmp_path / "program.py").write_text(CHILDREN)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.customized = True\n")
    return tmp_path


def test_children_inherit_the_routing_of_attention(children: Path) -> None:
    path = os.pathsep.join(filter(None, (str(children / "site"), os.environ.get("PYTHONPATH"))))
    done = run("--no-autotune", "-m", "program", cwd=children, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{how} {ROUTED} True" for how in METHODS]


BROKEN = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 100)], key=["n"])
@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)

x = torch.ones(300)
twice[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, 300)
assert x.eq(2).all()
q = torch.ones(1, 1, 4, 8)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What two starts of a program print on standard error: one config of its kernel is broken."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "program.py").write_text(BROKEN)
    found = []
    for _ in range(2):
        done = run("program.py", cwd=folder, TRITUNE_STORE=str(folder / "store.sqlite"))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        found.append(done.stderr.splitlines())
    return found


def test_a_config_that_fails_is_reported_with_its_reason(starts: list[list[str]]) -> None:
    line = starts[0][0]
    assert line.startswith("tritune: 1 of 2 configs of program.twice failed, the first: BLOCK=100 ")
    assert "compile_error" in line and "arange's range must be a power of 2" in line


def test_the_last_line_says_what_was_done(starts: list[list[str]]) -> None:
    attention = "torch's attention served, left alone where there is dropout"
    assert starts[0][1:] == [
        f"tritune: 1 kernel, 1 problem: 1 tuned; 1 of 2 configs failed; {attention}"
    ]
    assert starts[1] == [f"tritune: 1 kernel, 1 problem: 1 answered from the store; {attention}"]


def test_the_last_line_counts_what_all_processes_met() -> None:
    events = [
        Event("a", TUNED, configs=4, failed=1),
        Event("a", STORED),
        Event("b", UNTUNED),
        Event("c", SKIPPED, reason="no space left"),
    ]
    assert report(events, integrations=False) == (
        "2 kernels, 3 problems: 1 tuned, 1 answered from the store, 1 not tuned; "
        "1 of 4 configs failed; c left to Triton (no space left)"
    )
    assert report([]) == (
        "no triton.autotune kernel had anything to tune; torch's attention was not called"
    )


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
