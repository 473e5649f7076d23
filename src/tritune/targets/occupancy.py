"""Occupancy: the blocks of a kernel that fit on a core at once, and what limits them.

Both vendors give registers to a warp in granules, from the part of the register file that belongs
to the warp's scheduler, and shared memory to a block in granules.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import Limits


@dataclass(frozen=True)
class Occupancy:
    #: 0 where the kernel cannot be launched at all.
    blocks_per_core: int
    warps_per_core: int
    #: The limit: "registers", "shared memory", "warps" or "blocks".
    limited_by: str
    #: Of the warps that a core can have.
    fraction: float


def occupancy(facts: BinaryFacts, num_warps: int, limits: Limits) -> Occupancy:
    """Return how many blocks of `num_warps` warps a core can run at once."""
    rooms = {
        "warps": limits.warps_per_core // num_warps,
        "blocks": _block_slots(num_warps, limits),
        "registers": _by_registers(facts.registers or 0, num_warps, limits),
        "shared memory": _by_shared_memory(facts.shared_bytes, limits),
    }
    limited_by = min(rooms, key=lambda name: rooms[name])
    blocks = 0 if reasons_against(facts, num_warps, limits) else rooms[limited_by]
    warps = blocks * num_warps
    return Occupancy(blocks, warps, limited_by, warps / limits.warps_per_core)


def reasons_against(facts: BinaryFacts, num_warps: int, limits: Limits) -> list[str]:
    """Return every reason why the kernel cannot be launched; none if it can."""
    reasons = []
    threads = num_warps * limits.warp_size
    if threads > limits.threads_per_block:
        reasons.append(f"{threads} threads per block, allowed: {limits.threads_per_block}")
    if facts.shared_bytes > limits.shared_per_block:
        reasons.append(
            f"{facts.shared_bytes} bytes of shared memory per block, "
            f"allowed: {limits.shared_per_block}"
        )
    registers = facts.registers or 0
    if not _by_registers(registers, num_warps, limits):
        reasons.append(
            f"{registers} registers for each of {threads} threads, "
            f"a core has {limits.registers_per_core}"
        )
    return reasons


def warps_by_registers(registers: int, limits: Limits) -> int:
    """Return how many warps fit on a core with this many registers per thread."""
    per_thread = _rounded(max(registers, 1), limits.register_granule)
    part = limits.registers_per_core // limits.schedulers
    warps = part // (per_thread * limits.warp_size) * limits.schedulers
    return min(warps, limits.warps_per_core)


def _by_registers(registers: int, num_warps: int, limits: Limits) -> int:
    return warps_by_registers(registers, limits) // num_warps


def _by_shared_memory(shared_bytes: int, limits: Limits) -> int:
    size = _rounded(shared_bytes + limits.shared_reserved, limits.shared_granule)
    return limits.shared_per_core // size if size else limits.warps_per_core


def _block_slots(num_warps: int, limits: Limits) -> int:
    if limits.target.family == "hip" and num_warps == 1:
        # What is limited is barriers, and a single wave waits for nobody.
        return limits.warps_per_core
    return limits.blocks_per_core


def _rounded(amount: int, granule: int) -> int:
    return -(-amount // granule) * granule
