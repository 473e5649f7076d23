"""How fast a device can be at all: arithmetic and memory, measured with torch on the device itself.

A kernel that comes close to these limits has nothing left to gain.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tritune.targets.device import detect

#: The type that holds every value of the others, and these.
_WIDE, _NARROW = torch.float32, (torch.bfloat16, torch.float16)
#: Rows and columns of products; the last is long enough to keep a device of this kind busy.
_PRODUCT_SIZES = {"cpu": (128, 1024), "cuda": (1024, 8192)}
_RUNS = 10
_RUNS_AT_LEAST = 3
_SECONDS_EACH = 0.15
#: Larger than the caches that a device of this kind has, but no more than this part of its memory.
_BUFFER_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}
_BUFFER_PART = 16


@dataclass(frozen=True)
class Limits:
    """What a device reaches at best."""

    #: Operations of a matrix product, by the name of the type: "float16", for one.
    flops_per_second: Mapping[str, float]
    read_bytes_per_second: float

    def flops_for(self, dtype: str) -> float:
        """Of this type; for one that was not measured, the best of all, so that it is a limit."""
        return self.flops_per_second.get(dtype) or max(self.flops_per_second.values())


def seconds_at_limit(flops: float, read_bytes: float, dtype: str, limits: Limits) -> float:
    """The least time that so much work can take: whichever of arithmetic and memory is longer."""
    return max(flops / limits.flops_for(dtype), read_bytes / limits.read_bytes_per_second)


def measure_limits(device: torch.device) -> Limits:
    """The device's limits, measured in about a second, once in a process."""
    return _measured(device, detect(device).cores)


@functools.cache
def _measured(device: torch.device, cores: int) -> Limits:
    wide = _product_speed(device, _WIDE, 0.0)
    flops = {_name(_WIDE): wide}
    for dtype in _NARROW:
        # Values can be widened, so that a narrow type is never slower than the wide one. It can be
        # no faster than its own products, though: no narrow type holds the values of another.
        flops[_name(dtype)] = max(wide, _product_speed(device, dtype, wide))
    return Limits(flops, _read_speed(device))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _product_speed(device: torch.device, dtype: torch.dtype, to_beat: float) -> float:
    """The best floating-point operations per second of a matrix product."""
    best = 0.0
    for size in _PRODUCT_SIZES[device.type]:
        square = torch.ones((size, size), device=device, dtype=dtype)
        seconds = _best_seconds(device, functools.partial(torch.matmul, square, square))
        best = max(best, 2.0 * size**3 / seconds)
        if best < to_beat / 4:
            # Without instructions of its own a type is so slow that a larger product takes seconds.
            break
    return best


def _read_speed(device: torch.device) -> float:
    """The best bytes per second at which a buffer larger than the caches is read."""
    size = _BUFFER_BYTES[device.type]
    memory = detect(device).memory_bytes
    if memory:
        size = min(size, memory // _BUFFER_PART)
    buffer = torch.ones(size // torch.float32.itemsize, device=device, dtype=torch.float32)
    return buffer.nbytes / _best_seconds(device, buffer.sum)


def _best_seconds(device: torch.device, function: Callable[[], torch.Tensor]) -> float:
    """The shortest of several runs: fewer of long ones, and no second one of a very long one."""
    best = float("inf")
    _wait_for(device)
    begin = time.perf_counter()
    for run in range(_RUNS):
        start = time.perf_counter()
        function()
        _wait_for(device)
        now = time.perf_counter()
        best = min(best, now - start)
        enough = run + 1 >= _RUNS_AT_LEAST or best > _SECONDS_EACH
        if enough and now - begin > _SECONDS_EACH:
            break
    return best


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
