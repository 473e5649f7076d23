"""Configs that misbehave on purpose, for tests of tuners."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import triton

from tritune.errors import ArgumentError

#: What Triton gives to a hook: the kernel's arguments by their names.
Arguments = Mapping[str, Any] | None


def segfault(arguments: Arguments = None) -> None:
    """Read from address 0."""
    ctypes.string_at(0)


def abort(arguments: Arguments = None) -> None:
    """End the process as a failed assertion in C does."""
    os.abort()


def loop_for_ever(arguments: Arguments = None) -> None:
    """Loop in C, where no other thread of the process gets a turn."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def allocate_without_end(arguments: Arguments = None) -> None:
    """Ask for memory until there is none."""
    kept = []
    while True:
        kept.append(np.empty(1 << 26, dtype=np.uint8))


def fail(arguments: Arguments = None) -> None:
    """Raise an error that no tuner knows."""
    raise ValueError("not with this config")


def spoil(arguments: Arguments = None) -> None:
    """Change every floating-point tensor, so that the result is wrong."""
    for value in (arguments or {}).values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.add_(1.0)


#: Faults by name; each runs before the launch.
FAULTS: Mapping[str, Callable[..., None]] = {
    "segfaults": segfault,
    "aborts": abort,
    "hangs": loop_for_ever,
    "allocates without end": allocate_without_end,
    "raises": fail,
    "wrong result": spoil,
}


def faulty(config: triton.Config, fault: str) -> triton.Config:
    """Return the config with a fault: in a list, it must cost only itself."""
    if fault not in FAULTS:
        raise ArgumentError(f"fault {fault!r}, allowed: {', '.join(FAULTS)}")
    return triton.Config(
        config.kwargs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        num_ctas=config.num_ctas,
        maxnreg=config.maxnreg,
        pre_hook=FAULTS[fault],
    )
