"""Packages that an integration needs and tritune does not: their versions, and why one of them
cannot be imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tritune.integrations.errors import IntegrationError

_PIP_SECONDS = 60


@dataclass(frozen=True)
class FailedImport:
    """The distribution whose own import failed, and the error that ended it, in one line."""

    package: str
    error: str

    @property
    def remedy(self) -> str:
        """Return what to do about it: first, versions that do not go together, if pip sees any."""
        conflicts = conflicts_of(self.package)
        if conflicts:
            return f"{'; '.join(conflicts)}: install a {self.package} that goes with the others"
        return f"reinstall it: pip install --force-reinstall {self.package}"


def failed_import(error: BaseException, imported: str) -> FailedImport:
    """Return whose import the error ended, while the module `imported` was being imported."""
    while error.__cause__ is not None:
        error = error.__cause__
    name, trace = imported, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_name == "<module>" and module not in ("__main__", "tritune"):
            name = module
        trace = trace.tb_next
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return FailedImport(importlib.metadata.packages_distributions().get(name, [name])[0], text)


def conflicts_of(package: str) -> list[str]:
    """Return which requirements of a package are not met; nothing where there is no pip."""
    command = [sys.executable, "-m", "pip", "check"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = run.stdout.splitlines()
    return [line.rstrip(".") for line in lines if line.startswith(f"{package} ")]


class BrokenDependencyError(IntegrationError):
    """A package is there and cannot be imported, for its own fault or that of one it imports."""

    def __init__(self, dependency: Dependency, failed: FailedImport) -> None:
        own = failed.package == dependency.name
        self.remedy = f"{dependency.remedy} --force-reinstall" if own else failed.remedy
        why = failed.error if own else f"the import of {failed.package} fails, {failed.error}"
        self.reason = f"{dependency.name} cannot be imported for {dependency.module} ({why})"
        super().__init__(f"{self.reason}: {self.remedy}")


@dataclass(frozen=True)
class Dependency:
    """A package: the versions that will do, and what it is for."""

    name: str
    #: The first version that will do, and the first that is not known to.
    first: tuple[int, int]
    too_new: tuple[int, int]
    #: The module that needs it.
    module: str
    #: The group of tritune's optional dependencies that brings it.
    group: str

    @property
    def versions(self) -> str:
        return f">={self.first[0]}.{self.first[1]},<{self.too_new[0]}.{self.too_new[1]}"

    @property
    def remedy(self) -> str:
        return f"pip install 'tritune[{self.group}]'"


TRANSFORMERS = Dependency(
    "transformers", (5, 19), (6, 0), "tritune.integrations.transformers", "hf"
)

DEPENDENCIES = (TRANSFORMERS,)


def is_installed(dependency: Dependency) -> bool:
    """Return whether there is such a package; it is not imported, and may be broken."""
    try:
        return importlib.util.find_spec(dependency.name) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def importing(dependency: Dependency) -> Iterator[None]:
    """Import from a package in the block; whatever is wrong with it becomes one clear error."""
    name = dependency.name
    try:
        version = str(getattr(importlib.import_module(name), "__version__", "unknown"))
        match = re.match(r"(\d+)\.(\d+)", version)
        if match and not dependency.first <= (int(match[1]), int(match[2])) < dependency.too_new:
            raise IntegrationError(
                f"{name} {version} does not serve {dependency.module}, which needs "
                f"{name}{dependency.versions}: {dependency.remedy}"
            )
        yield
    except IntegrationError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise IntegrationError(
                f"{name} is not installed; {dependency.module} needs it: {dependency.remedy}"
            ) from None
        raise BrokenDependencyError(dependency, failed_import(error, name)) from error
