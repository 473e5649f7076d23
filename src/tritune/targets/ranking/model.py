"""An estimate of how long a launch takes on a GPU that need not be there, and why.

It puts together what an engineer would look at. A core runs as many blocks at once as fit. With
each trip of a block through its loop, each unit of the core (matrix instructions, lanes, shared
memory, the way to the caches) is busy for so many clocks. A warp alone uses one unit after the
other and waits for memory in between: its *chain*. Several warps fill each other's gaps, until the
units are busy all the time. Blocks are dealt out to the cores, and the core with most decides.

The constants are properties of silicon, the same for every kernel. An estimate orders candidates;
it never replaces a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import Limits
from tritune.targets.occupancy import Occupancy, occupancy
from tritune.targets.ranking.work import LaunchWork, Phase

#: From the host's call to the first instruction, and from the last result until it is seen.
LAUNCH_SECONDS = 3e-6
#: Until a value arrives from the cache that all cores share.
CACHE_SECONDS = {"cuda": 250e-9, "hip": 200e-9}
#: What one core can get from there.
CACHE_BYTES_PER_CLOCK = 64
#: A barrier between the warps of a block, with the shared memory that it guards.
BARRIER_CLOCKS = 60
#: A matrix instruction that waits for the sum of the one before.
MATRIX_CLOCKS = 34
#: From a product's last instruction to its first use, and exchange between the lanes of a row.
TURN_CLOCKS = 400
#: Instructions that are fetched for the first time.
CODE_BYTES_PER_CLOCK = {"cuda": 16, "hip": 2}
#: How much two things overlap that could go on at once, as the order of a norm: in order 1 they
#: add up, in an infinite one the longer hides the other.
OVERLAP = 3.0

MATRIX, VECTOR, SHARED, CACHE = "matrix", "vector", "shared memory", "cache"


@dataclass(frozen=True)
class Estimate:
    #: Infinite where the kernel cannot be launched.
    seconds: float
    #: What decides it: a unit of the core ("matrix", "vector", "shared memory", "cache"), "memory",
    #: "latency" where the core waits, or "launch".
    bound: str
    limits: Limits
    facts: BinaryFacts
    num_warps: int
    occupancy: Occupancy
    #: Blocks that run at once on a core, and how many it has to run in all.
    blocks_at_once: int
    blocks_per_core: int
    #: Clocks that one trip of one block keeps each unit busy, and its whole chain.
    trip_clocks: Mapping[str, float]
    #: Seconds of the parts of a launch; those of cores and memory overlap.
    parts: Mapping[str, float]

    @property
    def terms(self) -> dict[str, float]:
        """Everything that was added up, by name."""
        clocks = {f"trip clocks, {name}": value for name, value in self.trip_clocks.items()}
        return {**clocks, **{f"seconds, {name}": value for name, value in self.parts.items()}}


def estimate(work: LaunchWork, facts: BinaryFacts, limits: Limits) -> Estimate:
    """How long the launch takes, from what a program does and what its binary needs."""
    fit = occupancy(facts, work.num_warps, limits)
    most = -(-work.programs // limits.cores)
    known = (limits, facts, work.num_warps, fit)
    if not fit.blocks_per_core:
        return Estimate(math.inf, "launch", *known, 0, most, {}, {})
    core = _Core(work, facts, limits)
    at_once = min(most, fit.blocks_per_core)
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
    clocks = {**core.trip, "chain": core.trip_chain}
    return Estimate(seconds, _bound(core, parts, at_once), *known, at_once, most, clocks, parts)


class _Core:
    """Clocks of one block on a core."""

    def __init__(self, work: LaunchWork, facts: BinaryFacts, limits: Limits) -> None:
        self.warps, self.dtype, self.limits = work.num_warps, work.dtype, limits
        # All cores that have work share what the cache gives.
        active = min(work.programs, limits.cores)
        self._cache_rate = min(
            CACHE_BYTES_PER_CLOCK, limits.cache_bytes_per_second / limits.clock_hz / active
        )
        self._latency = CACHE_SECONDS[limits.target.family] * limits.clock_hz
        # What was spilled is written and read back in every trip, at worst.
        spilled = 2.0 * (facts.spill_bytes or 0) * work.num_warps * limits.warp_size
        self.trip = self._busy(work.trip, spilled)
        self.once = self._busy(work.once, 0.0)
        self.trip_chain = self._chain(work.trip, self.trip, work.stages)
        self.once_chain = self._chain(work.once, self.once, 1)
        if work.stages > 1 and work.trip.waits:
            # The first trip has nobody to ask in advance.
            self.once_chain += self._latency + self.trip[CACHE]

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

    def _chain(self, phase: Phase, busy: Mapping[str, float], stages: int) -> float:
        """Clocks of a warp that has the core for itself: one thing after the other."""
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
            # What is needed later in the trip is asked for at its beginning.
            later = max(0.0, latency - computing / 2)
            return computing + arrival + (phase.waits - 1) * later
        # Asked for so many trips in advance.
        return computing + max(0.0, arrival - (stages - 1) * computing)

    def units(self, busy: Mapping[str, float], blocks: float) -> dict[str, float]:
        """Clocks that so many blocks keep each unit busy; few warps leave schedulers idle."""
        idle = max(1.0, self.limits.schedulers / (blocks * self.warps))
        return {
            name: blocks * clocks * (idle if name in (MATRIX, VECTOR) else 1.0)
            for name, clocks in busy.items()
        }

    def working(self, busy: Mapping[str, float], blocks: float) -> float:
        """Clocks in which the units get through so many blocks.

        The more warps a scheduler has to choose from, the more of its units are busy at once.
        """
        order = min(OVERLAP, max(1.0, blocks * self.warps / self.limits.schedulers))
        return _norm(list(self.units(busy, blocks).values()), order)

    def trip_of(self, blocks: float) -> float:
        """Clocks in which so many blocks make a trip each."""
        return max(self.working(self.trip, blocks), self.trip_chain)

    def once_of(self, blocks: float) -> float:
        """Clocks in which so many blocks begin and end."""
        return max(self.working(self.once, blocks), self.once_chain)


def _clocks(work: LaunchWork, core: _Core, most: int, room: int, cores: int) -> float:
    """Clocks until the core with most blocks is done."""
    mean = work.total_trips / work.programs
    if most <= room:
        # All run at once: the longest decides, or what they all keep busy.
        longest = work.longest * core.trip_chain
        return max(longest, mean * core.working(core.trip, most)) + core.once_of(most)
    if len(work.groups) > 1:
        # Long and short blocks even out, up to the last ones.
        share = work.programs / cores / room
        even = share * (mean * core.trip_of(room) + core.once_of(room))
        return even + work.groups[-1][1] / 2 * core.trip_chain
    rounds, rest = divmod(most, room)
    clocks = rounds * (mean * core.trip_of(room) + core.once_of(room))
    if rest:
        clocks += mean * core.trip_of(rest) + core.once_of(rest)
    return clocks


def _bound(core: _Core, parts: Mapping[str, float], at_once: int) -> str:
    if parts["launch"] + parts["code"] + parts["merge"] > max(parts["cores"], parts["memory"]):
        return "launch"
    if parts["memory"] > parts["cores"]:
        return "memory"
    if core.trip_chain > core.working(core.trip, at_once):
        return "latency"
    units = core.units(core.trip, at_once)
    return max(units, key=lambda name: units[name])


def _joined(one: float, other: float) -> float:
    """Time of two things that go on at once."""
    return _norm([one, other], OVERLAP)


def _norm(values: list[float], order: float) -> float:
    largest = max(values)
    if not largest:
        return 0.0
    return float(largest * sum((value / largest) ** order for value in values) ** (1 / order))
