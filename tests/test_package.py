"""What can be relied on before anything is computed: versions, metadata, a light import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tritune
from tritune._version import TRITON_SUPPORTED

ROOT = Path(__file__).resolve().parents[1]


def test_importing_tritune_loads_neither_triton_nor_torch() -> None:
    program = "import sys, tritune; print(sorted({'triton', 'torch', 'numpy'} & set(sys.modules)))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_every_public_name_can_be_loaded() -> None:
    for name in tritune.__all__:
        assert getattr(tritune, name) is not None
    assert set(tritune.__all__) <= set(dir(tritune))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'atention'"):
        tritune.atention  # noqa: B018


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert metadata.version("tritune") == tritune.__version__


def test_triton_finds_the_cpu_backend_by_its_entry_point() -> None:
    entries = metadata.entry_points(group="triton.backends")
    assert [entry.value for entry in entries if entry.name == "cpu"] == ["tritune.cpu"]


def test_the_range_of_triton_versions_is_the_one_that_packaging_asks_for() -> None:
    (first, too_new) = (f"{major}.{minor}" for major, minor in TRITON_SUPPORTED)
    assert f'"triton>={first},<{too_new}"' in (ROOT / "pyproject.toml").read_text()


def test_every_requirement_is_pinned() -> None:
    pinned = {
        re.split(r"==", line)[0].strip().lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    required = {
        re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()
        for requirement in metadata.requires("tritune") or []
    }
    assert required <= pinned


#: What pip calls packages whose modules have other names.
DISTRIBUTIONS = {"yaml": "pyyaml"}
#: The packages that only some parts import, and the group of optional dependencies of each; vLLM
#: loads the part that imports it.
OPTIONAL = {"transformers": "hf", "pytest": "dev", "vllm": None}


def test_what_is_imported_is_declared() -> None:
    project = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"]
    required, optional = _names(project["dependencies"]), {g: _names(groups[g]) for g in groups}
    missing = set()
    for module in _imported() - set(sys.stdlib_module_names) - {"tritune"}:
        name = DISTRIBUTIONS.get(module, module)
        group = OPTIONAL.get(module)
        declared = name in (required if module not in OPTIONAL else optional.get(group, {name}))
        missing |= set() if declared else {name}
    assert missing == set()


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", each)[0].lower() for each in requirements}


def _imported() -> set[str]:
    """The first part of every module's name that a file of the package imports."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - {"KERNEL"}
