"""Estimate how long a launch takes on a GPU that need not be there, and why.

A core runs as many blocks at once as fit. With each iteration of a block, each unit of the core
(matrix instructions, lanes, shared memory, the path to the caches) is busy for some clocks. A warp
alone uses one unit after the other and waits for memory in between: its critical path. Several
warps fill each other's gaps, until the units are busy all the time. Blocks are distributed to the
cores, and the core with most of them decides.

The constants are properties of the hardware, the same for every kernel. An estimate orders
candidates; it does not replace a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import Limits
from tritune.targets.occupancy import Occupancy, occupancy
from tritune.targets.ranking.work import LaunchWork, Phase

#: From the host's call to the first instruction, and from the last result to the host.
LAUNCH_SECONDS = 3e-6
#: Latency of the cache that all cores share.
CACHE_SECONDS = {"cuda": 250e-9, "hip": 200e-9}
#: Bandwidth of that cache for one core.
CACHE_BYTES_PER_CLOCK = 64
#: A barrier between the warps of a block, with the accesses to shared memory around it.
BARRIER_CLOCKS = 60
#: Latency of a matrix instruction whose accumulator is the result of the one before.
MATRIX_CLOCKS = 34
#: From a product's last instruction to its first use, with shuffles between the lanes of a row.
TURN_CLOCKS = 400
#: Fetching instructions for the first time.
CODE_BYTES_PER_CLOCK = {"cuda": 16, "hip": 2}
#: How far concurrent work overlaps, as the order of a norm: in order 1 times add up, in an infinite
#: one the longer hides the other.
OVERLAP = 3.0

MATRIX, VECTOR, SHARED, CACHE = "matrix", "vector", "shared memory", "cache"


@dataclass(frozen=True)
class Estimate:
    #: Infinite where the kernel cannot be launched.
    seconds: float
    #: The bottleneck: a unit of the core ("matrix", "vector", "shared memory", "cache"), "memory",
    #: "latency" where the core waits, or "launch".
    bound: str
    limits: Limits
    facts: BinaryFacts
    num_warps: int
    occupancy: Occupancy
    #: Blocks that a core runs at once, and in all.
    concurrent_blocks: int
    blocks_per_core: int
    #: Clocks that an iteration of a block keeps each unit busy, and its critical path.
    iteration_clocks: Mapping[str, float]
    #: Seconds of the parts of a launch. Those of cores and memory overlap.
    parts: Mapping[str, float]


def estimate(work: LaunchWork, facts: BinaryFacts, limits: Limits) -> Estimate:
    """Estimate a launch from the work of its programs and the facts of its binary."""
    fit = occupancy(facts, work.num_warps, limits)
    most = -(-work.programs // limits.cores)
    known = (limits, facts, work.num_warps, fit)
    if not fit.blocks_per_core:
        return Estimate(math.inf, "launch", *known, 0, most, {}, {})
    core = _Core(work, facts, limits)
    concurrent = min(most, fit.blocks_per_core)
    merge = 0.0
    if work.merged_bytes:
        merge = LAUNCH_SECONDS + 2 * work.merged_bytes / limits.memory_bytes_per_second
    parts = {
        "launch": LAUNCH_SECONDS,
        "code": facts.code_bytes / CODE_BYTES_PER_CLOCK[limits.target.family] / limits.clock_hz,
        "cores": _clocks(work, core, most, fit.blocks_per_core, limits.cores) / limits.clock_hz,
        "memory": work.memory_bytes / limits.memory_bytes_per_second,
        "merge": merge,
    }
    seconds = parts["launch"] + parts["code"] + merge + _joined(parts["cores"], parts["memory"])
    clocks = {**core.iteration, "critical path": core.iteration_path}
    return Estimate(
        seconds, _bound(core, parts, concurrent), *known, concurrent, most, clocks, parts
    )


class _Core:
    """The clocks of one block on a core."""

    def __init__(self, work: LaunchWork, facts: BinaryFacts, limits: Limits) -> None:
        self.warps, self.dtype, self.limits = work.num_warps, work.dtype, limits
        # All cores that have work share what the cache gives.
        active = min(work.programs, limits.cores)
        self._cache_rate = min(
            CACHE_BYTES_PER_CLOCK, limits.cache_bytes_per_second / limits.clock_hz / active
        )
        self._latency = CACHE_SECONDS[limits.target.family] * limits.clock_hz
        # What was spilled is written and read back in every iteration, at worst.
        spilled = 2.0 * (facts.spill_bytes or 0) * work.num_warps * limits.warp_size
        self.iteration = self._busy(work.iteration, spilled)
        self.once = self._busy(work.once, 0.0)
        self.iteration_path = self._critical_path(work.iteration, self.iteration, work.stages)
        self.once_path = self._critical_path(work.once, self.once, 1)
        if work.stages > 1 and work.iteration.waits:
            # Nothing is prefetched for the first iteration.
            self.once_path += self._latency + self.iteration[CACHE]

    def _busy(self, phase: Phase, spilled: float) -> dict[str, float]:
        limits = self.limits
        matrix_rate = limits.flops_for(self.dtype) / limits.cores / limits.clock_hz
        lanes = phase.vector_ops / limits.vector_fmas_per_clock
        exponentials = phase.exponentials / limits.exponentials_per_clock
        # CDNA computes exponentials on the lanes that do everything else, others beside them.
        beside = limits.warp_size == 32
        return {
            MATRIX: phase.matrix_flops / matrix_rate,
            VECTOR: max(lanes, exponentials) if beside else lanes + exponentials,
            SHARED: phase.shared_bytes / limits.shared_bytes_per_clock,
            CACHE: (phase.global_bytes + spilled) / self._cache_rate,
        }

    def _critical_path(self, phase: Phase, busy: Mapping[str, float], stages: int) -> float:
        """Return the clocks of a warp that has the core for itself."""
        # A warp has one scheduler's units, and its share of the block's work.
        own = self.limits.schedulers / self.warps
        computing = (
            max(busy[MATRIX] * own, phase.matrix_steps * MATRIX_CLOCKS)
            + busy[VECTOR] * own
            + busy[SHARED] * min(1.0, 2 / self.warps)
            + phase.barriers * BARRIER_CLOCKS
            + (TURN_CLOCKS if phase.matrix_flops else 0.0)
        )
        if not phase.waits:
            return computing
        latency = self._latency
        arrival = latency + busy[CACHE]
        if stages == 1:
            # Loads for later in the iteration are issued at its beginning.
            later = max(0.0, latency - computing / 2)
            return computing + arrival + (phase.waits - 1) * later
        # Loads are issued this many iterations in advance.
        return computing + max(0.0, arrival - (stages - 1) * computing)

    def units(self, busy: Mapping[str, float], blocks: float) -> dict[str, float]:
        """Return the clocks that blocks keep each unit busy. Few warps leave schedulers idle."""
        idle = max(1.0, self.limits.schedulers / (blocks * self.warps))
        return {
            name: blocks * clocks * (idle if name in (MATRIX, VECTOR) else 1.0)
            for name, clocks in busy.items()
        }

    def working(self, busy: Mapping[str, float], blocks: float) -> float:
        """Return the clocks that the units need for some blocks.

        The more warps a scheduler can choose from, the more units are busy at once.
        """
        order = min(OVERLAP, max(1.0, blocks * self.warps / self.limits.schedulers))
        return _norm(list(self.units(busy, blocks).values()), order)

    def iterations_of(self, blocks: float) -> float:
        """Return the clocks of one iteration of each of some blocks."""
        return max(self.working(self.iteration, blocks), self.iteration_path)

    def once_of(self, blocks: float) -> float:
        """Return the clocks in which some blocks begin and end."""
        return max(self.working(self.once, blocks), self.once_path)


def _clocks(work: LaunchWork, core: _Core, most: int, room: int, cores: int) -> float:
    """Return the clocks until the core with most blocks is done."""
    mean = work.total_iterations / work.programs
    if most <= room:
        # All run at once: the longest decides, or what they all keep busy.
        longest = work.longest * core.iteration_path
        return max(longest, mean * core.working(core.iteration, most)) + core.once_of(most)
    if len(work.groups) > 1:
        # Long and short blocks even out, up to the last ones.
        share = work.programs / cores / room
        even = share * (mean * core.iterations_of(room) + core.once_of(room))
        return even + work.groups[-1][1] / 2 * core.iteration_path
    rounds, rest = divmod(most, room)
    clocks = rounds * (mean * core.iterations_of(room) + core.once_of(room))
    if rest:
        clocks += mean * core.iterations_of(rest) + core.once_of(rest)
    return clocks


def _bound(core: _Core, parts: Mapping[str, float], concurrent: int) -> str:
    if parts["launch"] + parts["code"] + parts["merge"] > max(parts["cores"], parts["memory"]):
        return "launch"
    if parts["memory"] > parts["cores"]:
        return "memory"
    if core.iteration_path > core.working(core.iteration, concurrent):
        return "latency"
    units = core.units(core.iteration, concurrent)
    return max(units, key=lambda name: units[name])


def _joined(one: float, other: float) -> float:
    """Return the time of two things that overlap."""
    return _norm([one, other], OVERLAP)


def _norm(values: list[float], order: float) -> float:
    largest = max(values)
    if not largest:
        return 0.0
    return float(largest * sum((value / largest) ** order for value in values) ** (1 / order))
