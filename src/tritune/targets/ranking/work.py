"""The work of a launch: the number of programs, and what each does once and in every iteration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """The work of a program in a part of its code, of all its warps."""

    #: Operations of matrix instructions, with rows that are padded or computed twice.
    matrix_flops: float = 0.0
    #: Operations on fp32 lanes: a fused multiply-add is one.
    vector_ops: float = 0.0
    exponentials: float = 0.0
    #: Between shared memory and registers.
    shared_bytes: float = 0.0
    #: Between caches or memory and the core.
    global_bytes: float = 0.0
    #: Loads in a row that depend on each other, without prefetching.
    waits: int = 0
    #: Barriers between the warps.
    barriers: int = 0
    #: Matrix instructions of a warp that depend on the one before.
    matrix_steps: float = 0.0


@dataclass(frozen=True)
class LaunchWork:
    """The work of one launch."""

    num_warps: int
    #: The dtype of matrix products.
    dtype: str
    #: Programs and how often each goes through its loop, in the order in which they start.
    groups: tuple[tuple[int, float], ...]
    iteration: Phase
    #: Before and after the loop.
    once: Phase
    #: Iterations whose loads are in flight, with the current one: `num_stages`.
    stages: int
    #: Bytes that memory must transfer at least, however often programs access them.
    memory_bytes: float
    #: Bytes of a second launch that merges the results of this one; 0 if there is none.
    merged_bytes: float = 0.0

    @property
    def programs(self) -> int:
        return sum(count for count, _ in self.groups)

    @property
    def total_iterations(self) -> float:
        return sum(count * iterations for count, iterations in self.groups)

    @property
    def longest(self) -> float:
        return max(iterations for _, iterations in self.groups)
