"""Facts about the machine that need nothing but the operating system."""

from __future__ import annotations

import os
from pathlib import Path

from tritune.cli._examination import Cache, Problem
from tritune.targets.host import cpuinfo


def physical_cores() -> int | None:
    """Cores as opposed to hardware threads, where the system tells."""
    package = ""
    cores: set[tuple[str, str]] = set()
    for key, value in cpuinfo():
        if key == "physical id":
            package = value
        elif key == "core id":
            cores.add((package, value))
    return len(cores) or None


def usable_threads() -> int:
    """Hardware threads that this process may run on; a container may allow fewer than all."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def triton_cache(problems: list[Problem]) -> Cache:
    """Where Triton keeps compiled kernels, by its own rule; works without Triton."""
    path = os.environ.get("TRITON_CACHE_DIR")
    source = "TRITON_CACHE_DIR"
    if not path:
        home = os.environ.get("TRITON_HOME")
        source = "TRITON_HOME" if home else "the default"
        path = os.path.join(home or os.path.expanduser("~/"), ".triton", "cache")
    folder = Path(path)
    exists = folder.is_dir()
    writable = _writable(folder)
    if not writable:
        problems.append(
            Problem(
                "error",
                f"Triton's cache folder cannot be written: {folder}",
                "make it writable, or point TRITON_CACHE_DIR to a folder that is",
            )
        )
    return Cache("triton", str(folder), source, exists, writable, _size(folder) if exists else 0)


def _writable(folder: Path) -> bool:
    """Whether `folder` can be written, or created where it does not exist yet."""
    for candidate in (folder, *folder.parents):
        if candidate.exists():
            return candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK)
    return False


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # another process may be cleaning up
    return total
