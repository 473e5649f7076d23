"""The work of a product with a weight, in full or quantized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.dtypes import element_bytes
from tritune.screening.launch_work.products import (
    SMALLEST,
    loop_ops,
    reads,
    rows_computed,
    square,
)
from tritune.targets.limits import Limits
from tritune.targets.ranking.work import LaunchWork, Phase

#: Operations that make a number of a code: taken out of its byte, shifted, scaled, converted.
CODE_OPS = 4.0
#: Operations on an element of the result: bias, activation, conversion, store.
RESULT_OPS = 8.0


def linear_work(
    problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits
) -> LaunchWork:
    """Return the work of the plain or the quantized kernel."""
    block_m, block_n, split = config["BLOCK_M"], config["BLOCK_N"], config.get("SPLIT_K", 1)
    rows, n, k = problem["rows"], problem["n"], problem["k"]
    tiles = -(-rows // block_m) * -(-n // block_n)
    width = element_bytes(problem["dtype"])
    weight_width = problem["bits"] / 8 if "bits" in problem else width
    trip = (_as_matrices if config["METHOD"] == "dot" else _by_lanes)(
        problem, config, limits, width, weight_width
    )
    result = block_m * block_n
    return LaunchWork(
        num_warps=config["num_warps"],
        dtype=problem["dtype"],
        groups=((tiles * split, -(-k // config["BLOCK_K"]) / split),),
        iteration=trip,
        once=Phase(vector_ops=RESULT_OPS * result, global_bytes=float(result * width), waits=1),
        stages=config.get("num_stages", 1),
        memory_bytes=rows * (k + n) * width + n * k * weight_width,
        merged_bytes=0.0 if split == 1 else 4.0 * split * rows * n,
    )


def _as_matrices(
    problem: Mapping[str, Any],
    config: Mapping[str, Any],
    limits: Limits,
    width: float,
    weight_width: float,
) -> Phase:
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    warps = config["num_warps"]
    along, across = square(block_m, block_n, warps)
    rows, columns = rows_computed(block_m, along), rows_computed(block_n, across)
    loaded = block_k * (block_m * width + block_n * weight_width)
    x, weight = block_m * block_k * width, block_n * block_k * width
    decoded = CODE_OPS * block_n * block_k if "bits" in problem else 0.0
    return Phase(
        matrix_flops=2.0 * rows * columns * block_k,
        matrix_steps=block_k / SMALLEST,
        vector_ops=decoded + loop_ops(loaded, warps, limits),
        shared_bytes=x * (across + 1) + weight * (reads(block_m, along, warps, limits) + 1),
        global_bytes=float(loaded),
        waits=1,
        barriers=2,
    )


def _by_lanes(
    problem: Mapping[str, Any],
    config: Mapping[str, Any],
    limits: Limits,
    width: float,
    weight_width: float,
) -> Phase:
    """Return an iteration for few rows: no matrix instruction, no shared memory."""
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    products = block_m * block_n * block_k
    loaded = block_k * (block_m * width + block_n * weight_width)
    per_product = 2.0 if config["METHOD"] == "lanes" else 3.0
    decoded = CODE_OPS * block_n * block_k if "bits" in problem else 0.0
    return Phase(
        vector_ops=per_product * products + decoded + loop_ops(loaded, config["num_warps"], limits),
        global_bytes=float(loaded),
        waits=1,
        barriers=1 if config["METHOD"] == "sum" else 0,
    )
