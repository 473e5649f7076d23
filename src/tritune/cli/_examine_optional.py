"""Whether the packages that integrations need are there and work; if not, the rest still does."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

from tritune.cli._examination import OptionalPackage, Problem
from tritune.integrations.optional import DEPENDENCIES, Dependency, is_installed

_SECONDS = 120
# Importing a broken package may do anything, so it is done in a process of its own.
_TRIAL = """
import importlib, json, sys
from tritune.errors import TrituneError
from tritune.integrations.optional import BrokenDependencyError
try:
    importlib.import_module(sys.argv[1])
except BrokenDependencyError as error:
    sys.exit(json.dumps([error.reason, error.remedy]))
except TrituneError as error:
    sys.exit(json.dumps([str(error), ""]))
"""


def examine_optional(problems: list[Problem]) -> tuple[OptionalPackage, ...]:
    """Every package; one that is there and cannot be used is a warning."""
    return tuple(_examine(dependency, problems) for dependency in DEPENDENCIES)


def _examine(dependency: Dependency, problems: list[Problem]) -> OptionalPackage:
    name, serves = dependency.name, dependency.module
    if not is_installed(dependency):
        absent = f"not installed; {serves} needs it: {dependency.remedy}"
        return OptionalPackage(name, None, serves, False, absent)
    try:
        version: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    reason, remedy = _failure(dependency)
    if reason is not None:
        problems.append(Problem("warning", reason, remedy or dependency.remedy))
    return OptionalPackage(name, version, serves, reason is None, reason)


def _failure(dependency: Dependency) -> tuple[str | None, str]:
    """Why the module that needs the package cannot be imported, in one line, and the remedy if it
    is another than for the package itself.
    """
    try:
        run = subprocess.run(
            [sys.executable, "-c", _TRIAL, dependency.module],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{dependency.name} was not examined: {type(error).__name__}", ""
    if run.returncode == 0:
        return None, ""
    lines = run.stderr.strip().splitlines()
    last = lines[-1] if lines else f"exit status {run.returncode}"
    try:
        reason, remedy = json.loads(last)
    except ValueError:  # whatever ended the process, it was not said by tritune
        reason, remedy = last, ""
    reason = " ".join(reason.split())
    return reason if dependency.name in reason else f"{dependency.name} fails: {reason}", remedy
