"""`tritune doctor` tells the truth about a machine, and still does when packages are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIELDS = {
    "schema",
    "healthy",
    "versions",
    "devices",
    "backends",
    "threads",
    "caches",
    "self_test",
    "optional",
    "problems",
}
SETTINGS = (
    "TRITON_DEFAULT_BACKEND",
    "TRITON_INTERPRET",
    "TRITON_BACKENDS_IN_TREE",
    "TRITUNE_NUM_THREADS",
)


def tritune(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [sys.executable, "-m", "tritune.cli.main", *arguments],
        capture_output=True,
        text=True,
        env={**clean, **environment},
    )


def doctor(**environment: str) -> tuple[int, dict[str, Any]]:
    run = tritune("doctor", "--json", **environment)
    assert "Traceback" not in run.stdout + run.stderr
    return run.returncode, json.loads(run.stdout)


def errors(document: dict[str, Any]) -> list[str]:
    return [p["what"] for p in document["problems"] if p["severity"] == "error"]


def package_that_fails(folder: Path, name: str, statement: str) -> str:
    """A PYTHONPATH on which importing `name` runs `statement`."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"{statement}\n")
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def here() -> tuple[int, dict[str, Any]]:
    return doctor()


def test_a_working_machine_is_healthy(here: tuple[int, dict[str, Any]]) -> None:
    status, document = here
    assert errors(document) == []
    assert document["healthy"]
    assert status == 0
    assert document["self_test"]["passed"]


def test_the_json_has_the_documented_fields(here: tuple[int, dict[str, Any]]) -> None:
    _, document = here
    assert set(document) == FIELDS
    assert document["schema"] == 1
    described = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text()
    for field in FIELDS:
        assert f"`{field}`" in described


def test_exactly_one_backend_is_in_use_and_the_idle_ones_say_why(
    here: tuple[int, dict[str, Any]],
) -> None:
    _, document = here
    assert sum(backend["in_use"] for backend in document["backends"]) == 1
    for backend in document["backends"]:
        assert backend["active"] or backend["reason"]


def test_the_cpu_is_described_as_llvm_sees_it(here: tuple[int, dict[str, Any]]) -> None:
    _, document = here
    cpu = document["devices"][0]
    assert cpu["kind"] == "cpu"
    assert cpu["vector_bits"] >= 128
    assert cpu["llvm_cpu"]
    assert cpu["features"]
    assert 1 <= cpu["usable_threads"] <= cpu["threads"]


def test_the_thread_count_names_its_source(here: tuple[int, dict[str, Any]]) -> None:
    assert here[1]["threads"]["source"] == "torch"
    _, document = doctor(TRITUNE_NUM_THREADS="1")
    assert document["threads"] == {"count": 1, "source": "TRITUNE_NUM_THREADS"}


def test_a_thread_count_that_is_no_number_is_a_problem() -> None:
    status, document = doctor(TRITUNE_NUM_THREADS="many")
    assert status == 1
    assert any("TRITUNE_NUM_THREADS='many'" in what for what in errors(document))


def test_the_text_for_people_is_plain_when_it_is_not_for_a_terminal() -> None:
    run = tritune("doctor", FORCE_COLOR="", TERM="xterm-256color")
    assert run.returncode == 0
    assert "\x1b" not in run.stdout
    assert "Problems\n  none" in run.stdout


@pytest.mark.parametrize("name", ["triton", "torch", "llvmlite", "numpy"])
def test_a_package_that_fails_to_import_is_one_line_with_a_remedy(
    name: str, tmp_path: Path
) -> None:
    path = package_that_fails(tmp_path, name, "raise RuntimeError('half\\ninstalled')")
    status, document = doctor(PYTHONPATH=path)
    assert status == 1
    assert f"{name} cannot be imported: RuntimeError: half" in errors(document)
    assert document["versions"][name] is None
    assert all(p["remedy"] and "\n" not in p["what"] for p in document["problems"])


def test_the_package_whose_import_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import sympathy\n")
    path = package_that_fails(tmp_path, "sympathy", "raise OSError('half installed')")
    status, document = doctor(PYTHONPATH=path)
    assert status == 1
    problem = next(p for p in document["problems"] if "sympathy" in p["what"])
    assert problem["what"] == (
        "torch cannot be imported, for sympathy fails: OSError: half installed"
    )
    assert problem["remedy"] == "reinstall it: pip install --force-reinstall sympathy"


@pytest.mark.parametrize("name", ["triton", "torch", "llvmlite", "numpy"])
def test_a_missing_package_is_named(name: str, tmp_path: Path) -> None:
    path = package_that_fails(
        tmp_path, name, f"raise ModuleNotFoundError('No module named {name}', name={name!r})"
    )
    status, document = doctor(PYTHONPATH=path)
    assert status == 1
    assert f"{name} is not installed" in errors(document)


def test_broken_packages_do_not_stop_the_text_for_people(tmp_path: Path) -> None:
    path = package_that_fails(tmp_path, "triton", "raise ImportError('libtriton.so: no such file')")
    run = tritune("doctor", PYTHONPATH=path)
    assert run.returncode == 1
    assert "Traceback" not in run.stdout + run.stderr
    assert "libtriton.so: no such file" in run.stdout


def test_an_unsupported_triton_is_refused(tmp_path: Path) -> None:
    path = package_that_fails(tmp_path, "triton", "__version__ = '3.2.0'; __path__ = []")
    (tmp_path / "triton" / "backends.py").write_text("backends = {}\n")
    (tmp_path / "triton" / "__init__.py").write_text("__version__ = '3.2.0'\n")
    status, document = doctor(PYTHONPATH=path)
    assert status == 1
    assert any("triton 3.2.0 is outside the supported range" in what for what in errors(document))


def test_an_unknown_default_backend_is_named_together_with_the_known_ones() -> None:
    status, document = doctor(TRITON_DEFAULT_BACKEND="tpu")
    assert status == 1
    problem = next(p for p in document["problems"] if "TRITON_DEFAULT_BACKEND" in p["what"])
    assert "'tpu'" in problem["what"]
    assert "cpu" in problem["remedy"]


def test_a_backend_kept_out_by_the_environment_is_noticed() -> None:
    _, document = doctor(TRITON_BACKENDS_IN_TREE="1")
    problem = next(p for p in document["problems"] if "CPU backend" in p["what"])
    assert "TRITON_BACKENDS_IN_TREE" in problem["remedy"]


def test_the_interpreter_is_a_warning_only() -> None:
    status, document = doctor(TRITON_INTERPRET="1")
    assert status == 0
    assert any("TRITON_INTERPRET" in p["what"] for p in document["problems"])


def test_a_cache_that_cannot_be_created_is_a_problem(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    status, document = doctor(TRITON_CACHE_DIR=str(blocker / "cache"))
    assert status == 1
    assert document["caches"][0]["writable"] is False
    assert any(str(blocker / "cache") in what for what in errors(document))


@pytest.mark.parametrize("arguments", [["doctor", "--jsn"], ["docter"], ["doctor", "extra"], []])
def test_a_bad_argument_gets_one_line_and_exit_status_2(arguments: list[str]) -> None:
    run = tritune(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("tritune: ")


def test_version_and_help() -> None:
    from tritune import __version__

    assert tritune("--version").stdout.strip() == f"tritune {__version__}"
    run = tritune("--help")
    assert run.returncode == 0
    assert "doctor" in run.stdout
