"""Check the packages that integrations need."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

from tritune.cli._examination import OptionalPackage, Problems
from tritune.integrations.dependencies import DEPENDENCIES, Dependency, is_installed

_TIMEOUT_SECONDS = 120
# Importing a broken package may do anything, so it is done in a process of its own.
_IMPORT = """
import importlib, json, sys
from tritune.errors import TrituneError
from tritune.integrations.dependencies import BrokenDependencyError
try:
    importlib.import_module(sys.argv[1])
except BrokenDependencyError as error:
    sys.exit(json.dumps([error.reason, error.remedy]))
except TrituneError as error:
    sys.exit(json.dumps([str(error), ""]))
"""


def examine_optional(problems: Problems) -> tuple[OptionalPackage, ...]:
    """Examine every package; one that is installed and cannot be used is a warning."""
    return tuple(_examine(dependency, problems) for dependency in DEPENDENCIES)


def _examine(dependency: Dependency, problems: Problems) -> OptionalPackage:
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
        problems.warning(reason, remedy or dependency.remedy)
    return OptionalPackage(name, version, serves, reason is None, reason)


def _failure(dependency: Dependency) -> tuple[str | None, str]:
    """Return why the module that needs the package cannot be imported, in one line, and the remedy
    if it is not the package's.
    """
    command = [sys.executable, "-c", _IMPORT, dependency.module]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{dependency.name} was not examined: {type(error).__name__}", ""
    if run.returncode == 0:
        return None, ""
    last = (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1]
    try:
        reason, remedy = json.loads(last)
    except ValueError:  # whatever ended the process, it was not said by tritune
        reason, remedy = last, ""
    reason = " ".join(reason.split())
    return reason if dependency.name in reason else f"{dependency.name} fails: {reason}", remedy
