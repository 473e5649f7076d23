"""The limits of a GPU architecture and the peak rates of its best-known product.

A *core* is what runs a block: a multiprocessor of NVIDIA's, a compute unit of AMD's CDNA, and on
AMD's RDNA the two compute units of a work-group processor, as HIP counts multiprocessors. A *warp*
is AMD's wavefront. The figures themselves are in `limits_table.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritune.errors import nearest
from tritune.targets.target import Target, TargetError

#: Limits that constraints of spaces may name.
_NAMES = {
    "shared_memory_bytes": "shared_per_block",
    "registers_per_block": "registers_per_core",
    "registers_per_thread": "registers_per_thread",
    "warp_size": "warp_size",
}


@dataclass(frozen=True)
class Limits:
    """One architecture. Sizes are in bytes, registers are of 32 bits."""

    target: Target
    #: The documents that the figures were taken from, of the architecture and of the product.
    sources: tuple[str, ...]

    warp_size: int
    #: Parts of a core that share nothing but its shared memory and cache: each has its own warps,
    #: registers and arithmetic, and issues one instruction at a time.
    schedulers: int
    warps_per_core: int
    blocks_per_core: int
    threads_per_block: int
    #: Registers of all threads of a core, and the most that one thread can have.
    registers_per_core: int
    registers_per_thread: int
    #: A thread's registers are rounded up to a multiple of this.
    register_granule: int
    shared_per_core: int
    shared_per_block: int
    #: A block's shared memory is rounded up to a multiple of this,
    shared_granule: int
    #: after the system has added this much for itself.
    shared_reserved: int
    #: What a core reads of its shared memory in a clock.
    shared_bytes_per_clock: int
    #: Exponentials that a core computes in a clock, and fused multiply-adds of fp32 on its lanes.
    exponentials_per_clock: int
    vector_fmas_per_clock: int

    #: The product that the figures below are of.
    product: str
    cores: int
    clock_hz: float
    memory_bytes: int
    memory_bytes_per_second: float
    #: The cache in front of the memory that all cores see, the largest where there are several.
    cache_bytes: int
    #: What that cache gives all cores together.
    cache_bytes_per_second: float
    #: Peak operations per second of matrix products without sparsity, by the name of the type.
    matrix_flops: Mapping[str, float]

    def flops_for(self, dtype: str) -> float:
        """Return the peak operations per second of matrix products in a dtype.

        A dtype without instructions of its own is converted to fp32.
        """
        return self.matrix_flops.get(dtype) or self.matrix_flops["float32"]


def limits_of(target: Target) -> Limits:
    """Return the limits of an architecture; raise TargetError if the table does not have it."""
    known = _table()
    if target in known:
        return known[target]
    names = ", ".join(map(str, known))
    if target.family == "cpu":
        raise TargetError(f"{target} has no limits that are known beforehand, only GPUs: {names}")
    meant = nearest(str(target), map(str, known))
    raise TargetError(f"nothing is known of {target}{meant}: known are {names}")


@functools.cache
def limits_by_name(family: str, arch: int | str) -> Mapping[str, Any]:
    """Return an architecture's limits by the names that constraints of spaces use.

    An unknown GPU gets the smallest of its vendor's limits; a CPU has none.
    """
    ours = [limits for limits in _table().values() if limits.target.family == family]
    known = [limits for limits in ours if limits.target.arch == arch] or ours
    return {
        name: min((getattr(limits, field) for limits in known), default=None)
        for name, field in _NAMES.items()
    }


def known_targets() -> tuple[Target, ...]:
    """Return every architecture in the table."""
    return tuple(_table())


@functools.cache
def _table() -> Mapping[Target, Limits]:
    from tritune.targets.limits_table import TABLE

    return {limits.target: limits for limits in TABLE}
