"""The device interface that Triton and its users expect: loading, properties, events, caches."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from tritune.cpu.launch import launcher, loader, threads

# Larger than any launch asks for: a CPU has no such limits, but Triton checks them.
_NO_LIMIT = 2**31 - 1


class Utils:
    """Triton's `driver.utils`."""

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: object
    ) -> tuple[loader.Loaded, Any, int, int, int]:
        """Return (module, function, registers, spills, most threads) of a kernel's object code."""
        loaded = launcher.load(name, kernel)
        return loaded, loaded.entry, 16, 0, _NO_LIMIT

    def unload_module(self, module: object) -> None:
        # After a change of driver, Triton hands over modules that another one loaded.
        if isinstance(module, loader.Loaded):
            loader.unload(module)

    def get_device_properties(self, device: object = None) -> dict[str, Any]:
        """Return the properties that programs read to size a launch, with a GPU's names."""
        from tritune.cpu import features

        return {
            "arch": features.host().name,
            "multiprocessor_count": threads.count(),
            "warpSize": 1,
            "max_shared_mem": _NO_LIMIT,
            "max_num_regs": 65536,
            "cooperativeLaunch": False,
        }


class Event:
    """A moment in time, as `torch.cuda.Event`: a launch has ended when it returns."""

    def __init__(self, enable_timing: bool = False, **_: object) -> None:
        self._nanoseconds = 0

    def record(self, stream: object = None) -> None:
        self._nanoseconds = time.perf_counter_ns()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`."""
        return (end._nanoseconds - self._nanoseconds) / 1e6

    def synchronize(self) -> None:
        """Do nothing: a launch has ended when it returns."""

    def wait(self, stream: object = None) -> None:
        """Do nothing: a launch has ended when it returns."""

    def query(self) -> bool:
        return True


class Interface:
    """`torch.cpu`, with events that can be timed."""

    Event = Event

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch.cpu, name)


@functools.cache
def last_level_cache_bytes() -> int:
    """Return the size of all last-level caches, at most 512 MiB; 64 MiB if unknown."""
    levels: dict[int, dict[str, int]] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            sharers = (index / "shared_cpu_list").read_text().strip()
            scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
            levels.setdefault(level, {})[sharers] = int(size[:-1]) * scale
        except (OSError, ValueError, KeyError, IndexError):
            continue
    total = sum(levels[max(levels)].values()) if levels else 64 << 20
    return min(total, 512 << 20)
