"""Which package is to blame when another cannot be imported."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import dataclass

_SECONDS = 60


@dataclass(frozen=True)
class Blame:
    """The distribution whose own import failed, and the error that ended it, in one line."""

    package: str
    error: str

    @property
    def remedy(self) -> str:
        """What to do about it: versions that do not go together, if pip sees some, come first."""
        conflicts = conflicts_of(self.package)
        if conflicts:
            return f"{'; '.join(conflicts)}: install a {self.package} that goes with the others"
        return f"reinstall it: pip install --force-reinstall {self.package}"


def blame(error: BaseException, imported: str) -> Blame:
    """Tell whose import the error ended, while the module `imported` was being imported."""
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
    return Blame(distribution_of(name), text)


def distribution_of(module: str) -> str:
    """What pip calls the package of a module; the module's own name where nothing is known."""
    return importlib.metadata.packages_distributions().get(module, [module])[0]


def conflicts_of(package: str) -> list[str]:
    """What pip says of a package whose requirements are not met; nothing where there is no pip."""
    command = [sys.executable, "-m", "pip", "check"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = run.stdout.splitlines()
    return [line.rstrip(".") for line in lines if line.startswith(f"{package} ")]
