"""A package that an integration needs may be absent, too old or broken: the rest goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What a folder for PYTHONPATH has to hold for transformers to be absent, too old or broken. Where
# the package is installed, only an import hook can make it absent.
ABSENT = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
CASES = {
    "absent": ("sitecustomize.py", ABSENT, "not installed"),
    "too old": ("transformers/__init__.py", "__version__ = '4.57.6'", "needs transformers>=5"),
    "broken": (
        "transformers/__init__.py",
        "raise OSError('libpieces.so is missing')",
        "OSError: libpieces.so is missing",
    ),
    "broken inside": (
        "transformers/__init__.py",
        "__version__ = '5.22.2'",
        "ImportError: cannot import name 'AttentionInterface'",
    ),
    "deadly": ("transformers/__init__.py", "import os; os._exit(3)", "exit status 3"),
}


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def spoil(folder: Path, case: str) -> str:
    file, text, reason = CASES[case]
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    return reason


def test_the_package_whose_import_fails_is_the_one_to_mend(tmp_path: Path) -> None:
    """As with a torchvision for another torch, which transformers imports."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(
        "__version__ = '5.22.2'\n"
        "try:\n    import torchvision\n"
        "except Exception as error:\n    raise RuntimeError('a lazy import failed') from error\n"
    )
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "import torch\ntorch.library.register_fake('torchvision::nms')(lambda boxes: boxes)\n"
        "torch.ops.torchvision.nms\n"
    )
    about = tmp_path / "torchvision-0.20.1.dist-info"
    about.mkdir()
    requires = (
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.1\nRequires-Dist: torch==2.5.1\n"
    )
    (about / "METADATA").write_text(requires)
    (about / "RECORD").write_text("torchvision/__init__.py,,\n")
    run = python(tmp_path, "-m", "tritune.cli.main", "doctor", "--json")
    (problem,) = json.loads(run.stdout)["problems"]
    assert "the import of torchvision fails, " in problem["what"]
    assert (
        "torchvision 0.20.1 has requirement torch==2.5.1, but you have torch" in problem["remedy"]
    )
    assert "transformers" not in problem["remedy"]


@pytest.mark.parametrize("case", CASES)
def test_the_doctor_has_one_line_for_it(case: str, tmp_path: Path) -> None:
    reason = spoil(tmp_path, case)
    examine = (
        "import json; from tritune.cli._examination import Problems; "
        "from tritune.cli._examine_optional import examine_optional as e; "
        "problems = Problems(); packages = e(problems); "
        "print(json.dumps([[p.name, p.usable, p.reason] for p in packages])); "
        "print(json.dumps([[p.severity, p.what] for p in problems]))"
    )
    run = python(tmp_path, "-c", examine)
    assert run.returncode == 0, run.stderr
    packages, problems = map(json.loads, run.stdout.splitlines())
    (found,) = [package for package in packages if package[0] == "transformers"]
    assert found[1] is False
    assert reason in found[2] and "\n" not in found[2]
    about = [problem for problem in problems if "transformers" in problem[1]]
    # What is not there is no problem.
    assert about == ([] if case == "absent" else [["warning", found[2]]])


def test_the_rest_of_the_doctor_goes_on(tmp_path: Path) -> None:
    reason = spoil(tmp_path, "broken")
    run = python(tmp_path, "-m", "tritune.cli.main", "doctor")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the right answer" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    problems = run.stdout.partition("Problems")[2]
    assert [line for line in problems.splitlines() if reason in line and "warning" in line]


def test_a_program_that_asks_for_it_gets_one_clear_error(tmp_path: Path) -> None:
    spoil(tmp_path, "too old")
    run = python(tmp_path, "-c", "import tritune; tritune.enable('transformers')")
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert "transformers 4.57.6 does not serve" in last
    assert "pip install 'tritune[hf]'" in last


def test_a_program_that_does_not_use_it_does_not_notice(tmp_path: Path) -> None:
    spoil(tmp_path, "broken")
    program = (
        "from tritune.integrations import enable_all; import torch, sys; enabled = enable_all(); "
        "x = torch.ones(1, 1, 2, 4); "
        "print(torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().item(), "
        "'transformers' in sys.modules)"
    )
    run = python(tmp_path, "-c", program)
    assert run.stdout.split() == ["8.0", "False"], run.stderr
