"""What one launch of a kernel does, in terms that hold for every op: how many programs, what each
does once and in every trip through its loop.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """What one program does in a part of its code, all its warps together."""

    #: Operations of matrix instructions, with rows that are padded or computed twice.
    matrix_flops: float = 0.0
    #: Operations on fp32 lanes: a fused multiply-add is one.
    vector_ops: float = 0.0
    exponentials: float = 0.0
    #: Between shared memory and registers.
    shared_bytes: float = 0.0
    #: Between caches or memory and the core.
    global_bytes: float = 0.0
    #: How often in a row it waits for memory if nothing was asked for in advance.
    waits: int = 0
    #: How often the warps wait for each other.
    barriers: int = 0
    #: Matrix instructions of a warp that wait for the one before.
    matrix_steps: float = 0.0


@dataclass(frozen=True)
class LaunchWork:
    """One launch."""

    num_warps: int
    #: The type that matrix products are computed in.
    dtype: str
    #: Programs and how often each goes through its loop, in the order in which they start.
    groups: tuple[tuple[int, float], ...]
    trip: Phase
    #: Before and after the loop.
    once: Phase
    #: Trips whose memory is asked for in advance, and the current one.
    stages: int
    #: Bytes that have to come from memory or go there, however often programs touch them.
    memory_bytes: float
    #: Bytes of a second launch that merges the results of this one; 0 if there is none.
    merged_bytes: float = 0.0

    @property
    def programs(self) -> int:
        return sum(count for count, _ in self.groups)

    @property
    def total_trips(self) -> float:
        return sum(count * trips for count, trips in self.groups)

    @property
    def longest(self) -> float:
        return max(trips for _, trips in self.groups)
