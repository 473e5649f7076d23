"""Packages that an integration needs and tritune does not: which versions, and what to say."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tritune.integrations.blame import Blame, blame
from tritune.integrations.errors import IntegrationError


class BrokenDependencyError(IntegrationError):
    """A package is there and cannot be imported, for its own fault or that of one it imports."""

    def __init__(self, dependency: Dependency, blamed: Blame) -> None:
        own = blamed.package == dependency.name
        self.remedy = f"{dependency.remedy} --force-reinstall" if own else blamed.remedy
        why = blamed.error if own else f"the import of {blamed.package} fails, {blamed.error}"
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
    """Whether there is such a package; it is not imported, and may be broken."""
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
        raise BrokenDependencyError(dependency, blame(error, name)) from error
