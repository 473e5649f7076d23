"""The work of attention over keys and values in pages, most often one query per sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.dtypes import element_bytes
from tritune.screening.launch_work.attention import around, merged_bytes, visit
from tritune.targets.limits import Limits
from tritune.targets.ranking.work import LaunchWork


def paged_attention_work(
    problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits
) -> LaunchWork:
    """Return the work of the paged kernel: heads that share keys are rows of one program."""
    splits, sequences = config.get("NUM_SPLITS", 1), problem["sequences"]
    kv_heads, rows = problem["kv_heads"], problem["queries"] * problem["group"]
    # Of windows, the problem counts the keys that they leave.
    seen = problem["keys"]
    programs = -(-rows // config["BLOCK_M"]) * sequences * kv_heads * splits
    both = problem["head_size"] + problem["value_size"]
    width, kv_width = element_bytes(problem["dtype"]), element_bytes(problem["kv_dtype"])
    read = kv_heads * seen * both * kv_width
    written = rows * kv_heads * both * width
    return LaunchWork(
        num_warps=config["num_warps"],
        dtype=problem["dtype"],
        groups=((programs, -(-seen // config["BLOCK_N"]) / splits),),
        iteration=visit(problem, config, limits, problem["kv_dtype"]),
        once=around(problem, config),
        stages=config.get("num_stages", 1),
        memory_bytes=float(sequences * (read + written)),
        merged_bytes=merged_bytes(sequences * rows * kv_heads, problem["value_size"], splits),
    )
