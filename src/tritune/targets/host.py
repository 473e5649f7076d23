"""Facts about this machine's processor, from the operating system."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_model() -> str | None:
    """Return the processor's own name; some architectures have none."""
    for key, value in cpuinfo():
        if key in ("model name", "Model", "cpu model", "cpu"):
            return " ".join(value.split())
    return platform.processor() or None


def cpuinfo() -> list[tuple[str, str]]:
    """Return the lines of /proc/cpuinfo as keys and values; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def memory_bytes() -> int:
    """Return the machine's memory in whole gibibytes; 0 where the system does not tell.

    Rounded, because what the system keeps for itself differs from boot to boot.
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
    return max(1, round(total / 2**30)) * 2**30


def physical_cores() -> int | None:
    """Return the number of cores as opposed to hardware threads; None where it is not known."""
    package = ""
    cores: set[tuple[str, str]] = set()
    for key, value in cpuinfo():
        if key == "physical id":
            package = value
        elif key == "core id":
            cores.add((package, value))
    return len(cores) or None


def usable_threads() -> int:
    """Return the hardware threads of this process; a container may allow fewer than all."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
