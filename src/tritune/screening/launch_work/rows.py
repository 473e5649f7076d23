"""The work of kernels that read rows, compute something element by element, and write rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.dtypes import element_bytes
from tritune.screening.launch_work.products import loop_ops
from tritune.targets.limits import Limits
from tritune.targets.ranking.work import LaunchWork, Phase

#: Operations per element, with conversions.
NORM_OPS, GATED_OPS, ROPE_OPS = 8.0, 14.0, 10.0


def rms_norm_work(
    problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits
) -> LaunchWork:
    """Return the work of RMS norm: rows longer than a block are read in a loop, and read twice."""
    rows, columns, width = problem["rows"], problem["columns"], element_bytes(problem["dtype"])
    block, at_once = config["BLOCK"], config["ROWS"]
    # x and the weight; the residual too where it is added.
    inputs, outputs = (3, 2) if problem["adds"] else (2, 1)
    passes = 1 if block >= columns else 2
    trips = passes * -(-columns // block)
    read = at_once * block * width * inputs
    written = at_once * block * width * outputs / passes
    return _streaming(
        config, limits, -(-rows // at_once), trips, config.get("STAGES", 1),
        NORM_OPS * at_once * block, read, written,
        float(rows * columns * width * (inputs - 1 + outputs)), barriers=2,
    )  # fmt: skip


def gated_work(problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits) -> LaunchWork:
    """Return the work of an activation of one tensor times another."""
    rows, columns, width = problem["rows"], problem["columns"], element_bytes(problem["dtype"])
    block, at_once = config["BLOCK"], config["ROWS"]
    programs = -(-rows // at_once) * -(-columns // block)
    elements = at_once * block
    return _streaming(
        config, limits, programs, 1, 1, GATED_OPS * elements, 2.0 * elements * width,
        float(elements * width), 3.0 * rows * columns * width, exponentials=float(elements),
    )  # fmt: skip


def rope_work(problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits) -> LaunchWork:
    """Return the work of rotary embedding; the tables of a token are read once."""
    tokens, size, width = problem["tokens"], problem["size"], element_bytes(problem["dtype"])
    heads = problem["q_heads"] + problem["k_heads"]
    at_once, parts = config["HEADS"], config["PARTS"]
    programs = -(-tokens // config["TOKENS"]) * parts
    steps = sum(
        -(-count // (at_once * parts)) for count in (problem["q_heads"], problem["k_heads"])
    )
    elements = at_once * size
    return _streaming(
        config, limits, programs, config["TOKENS"] * steps, 1, ROPE_OPS * elements,
        float(elements * width), float(elements * width), 2.0 * tokens * heads * size * width,
    )  # fmt: skip


def _streaming(
    config: Mapping[str, Any], limits: Limits, programs: int, trips: float, stages: int,
    ops: float, read: float, written: float, memory: float, *,
    exponentials: float = 0.0, barriers: int = 0,
) -> LaunchWork:  # fmt: skip
    warps = config["num_warps"]
    return LaunchWork(
        num_warps=warps,
        dtype="float32",
        groups=((programs, float(trips)),),
        iteration=Phase(
            vector_ops=ops + loop_ops(read + written, warps, limits),
            exponentials=exponentials,
            global_bytes=read + written,
            waits=1,
            barriers=barriers,
        ),
        once=Phase(),
        stages=stages,
        memory_bytes=memory,
    )
