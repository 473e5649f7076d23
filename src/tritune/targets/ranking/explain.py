"""Explain an estimate in words."""

from __future__ import annotations

import math

from tritune.targets.binary import BinaryFacts
from tritune.targets.occupancy import reasons_against
from tritune.targets.ranking.model import Estimate

_BOUNDS = {
    "matrix": "matrix instructions",
    "vector": "arithmetic outside of products",
    "shared memory": "reading shared memory",
    "cache": "reading the caches",
    "memory": "the memory's bandwidth",
    "latency": "waiting: too few warps hide each other's latency",
    "launch": "launching it",
}


def explain(estimate: Estimate) -> str:
    """Describe an estimate: the time, the bottleneck, the occupancy, the clocks of each unit."""
    facts, num_warps, limits = estimate.facts, estimate.num_warps, estimate.limits
    if math.isinf(estimate.seconds):
        return "cannot be launched: " + "; ".join(reasons_against(facts, num_warps, limits))
    return "\n".join(
        (
            f"about {_time(estimate.seconds)} on {limits.product}, "
            f"bound by {_BOUNDS[estimate.bound]}",
            _binary(facts),
            _blocks(estimate, num_warps),
            _iteration(estimate),
            "time: " + ", ".join(f"{n} {_time(s)}" for n, s in estimate.parts.items() if s),
        )
    )


def _binary(facts: BinaryFacts) -> str:
    spilled = f", {facts.spill_bytes} bytes of it spilled" if facts.spill_bytes else ""
    return (
        f"a thread has {facts.registers} registers{spilled}; "
        f"a block has {facts.shared_bytes} bytes of shared memory; "
        f"the code has {facts.code_bytes} bytes"
    )


def _blocks(estimate: Estimate, num_warps: int) -> str:
    fit = estimate.occupancy
    rounds = estimate.blocks_per_core / max(estimate.concurrent_blocks, 1)
    return (
        f"a core has room for {fit.blocks_per_core} blocks of {num_warps} warps "
        f"({fit.fraction:.0%} of its warps, limited by {fit.limited_by}) and runs "
        f"{estimate.blocks_per_core} of them in {rounds:.1f} rounds"
    )


def _iteration(estimate: Estimate) -> str:
    clocks = {name: round(value) for name, value in estimate.iteration_clocks.items()}
    alone = clocks.pop("critical path")
    units = ", ".join(f"{name} {value}" for name, value in clocks.items() if value)
    return f"clocks of a block's iteration: {units}; of a warp alone: {alone}"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms"
