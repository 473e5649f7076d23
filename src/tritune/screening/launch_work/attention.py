"""The work of attention: keys and values are visited a block at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tritune.dtypes import element_bytes
from tritune.screening.launch_work.products import (
    SMALLEST,
    gathered,
    loop_ops,
    reads,
    rows_computed,
)
from tritune.targets.limits import Limits
from tritune.targets.ranking.work import LaunchWork, Phase

#: Operations on a score: scaled, compared, subtracted, summed up, converted.
SCORE_OPS = 5.0
#: More where bf16 is rounded without an instruction for it.
BF16_OPS = 4.0
#: Operations on a row per trip: its maximum and sum, which several lanes share, and the shrinking.
ROW_OPS = 48.0
#: Operations on an element of the result: divided, converted, stored.
RESULT_OPS = 10.0

Groups = tuple[tuple[int, float], ...]


def attention_work(
    problem: Mapping[str, Any],
    config: Mapping[str, Any],
    limits: Limits,
    diagonal: int | None = None,
) -> LaunchWork:
    """Return the work of the attention kernel.

    With `causal`, the query of row i sees the keys up to i + diagonal; unless that is given,
    queries and keys end together.
    """
    pack = problem["group"] if config.get("PACK_HEADS") else 1
    heads = problem["heads"] // pack * problem["batch"]
    splits = config.get("NUM_SPLITS", 1)
    offset = problem["keys"] - problem["queries"] if diagonal is None else diagonal
    groups = _groups(problem, config, pack, heads * splits, splits, offset)
    kv_heads = problem["heads"] // problem["group"]
    rows = problem["queries"] * problem["heads"] * problem["batch"]
    width = element_bytes(problem["dtype"])
    both = problem["head_size"] + problem["value_size"]
    elements = (rows + _seen(problem, offset) * kv_heads * problem["batch"]) * both
    return LaunchWork(
        num_warps=config["num_warps"],
        dtype=problem["dtype"],
        groups=groups,
        iteration=visit(problem, config, limits, problem["dtype"]),
        once=around(problem, config),
        stages=config.get("num_stages", 1),
        memory_bytes=float(elements * width),
        merged_bytes=merged_bytes(rows, problem["value_size"], splits),
    )


def visit(
    problem: Mapping[str, Any], config: Mapping[str, Any], limits: Limits, kv_dtype: str
) -> Phase:
    """Return the work for one block of keys and values."""
    block_m, block_n, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    size, value_size = problem["head_size"], problem["value_size"]
    # Warps have whole rows, so that the maximum of a row is known to those who need it.
    rows = rows_computed(block_m, warps, _smallest(config))
    score_ops = SCORE_OPS
    if problem["dtype"] == "bfloat16" and limits.target.arch in ("gfx90a", "gfx942"):
        score_ops += BF16_OPS
    loaded = block_n * (size + value_size) * element_bytes(kv_dtype)
    width, readers = element_bytes(problem["dtype"]), reads(block_m, warps, warps, limits)
    # Keys are contiguous along the head, over which their product sums; values are not.
    more_bytes, more_ops = gathered(block_n * value_size * width, readers, limits)
    return Phase(
        matrix_flops=2.0 * rows * block_n * (size + value_size),
        matrix_steps=(size + block_n) / SMALLEST,
        vector_ops=rows * (score_ops * block_n + value_size + ROW_OPS)
        + loop_ops(loaded, warps, limits)
        + more_ops,
        exponentials=float(rows * block_n),
        shared_bytes=(readers + 1) * block_n * (size + value_size) * width + more_bytes,
        global_bytes=float(loaded),
        waits=1 if config.get("PRE_LOAD_V") else 2,
        barriers=4,
    )


def around(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Phase:
    """Return the work outside the loop: queries are read, the result is written."""
    block_m, width = config["BLOCK_M"], element_bytes(problem["dtype"])
    rows = rows_computed(block_m, config["num_warps"], _smallest(config))
    size, value_size = problem["head_size"], problem["value_size"]
    return Phase(
        vector_ops=RESULT_OPS * rows * value_size,
        shared_bytes=2.0 * block_m * size * width,
        global_bytes=float(block_m * (size + value_size) * width),
        waits=2,
        barriers=2,
    )


def _smallest(config: Mapping[str, Any]) -> int:
    """Return the rows of a matrix instruction, which is a choice on CDNA."""
    return config.get("matrix_instr_nonkdim") or SMALLEST


def merged_bytes(rows: int, value_size: int, splits: int) -> float:
    """Return the bytes that the splits write for the second kernel to merge, in fp32."""
    return 0.0 if splits == 1 else 4.0 * splits * rows * value_size


def _seen(problem: Mapping[str, Any], offset: int) -> int:
    """Return how many keys some query sees."""
    if not problem["causal"]:
        return int(problem["keys"])
    seen = min(problem["keys"], problem["queries"] + offset)
    window = problem.get("window", 0)
    return max(0, min(seen, problem["queries"] + window) if window else seen)


def _groups(
    problem: Mapping[str, Any],
    config: Mapping[str, Any],
    pack: int,
    slots: int,
    splits: int,
    offset: int,
) -> Groups:
    """Return how many programs have how many blocks of keys, the longest first."""
    block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
    queries, keys, window = problem["queries"], problem["keys"], problem.get("window", 0)
    tiles = -(-queries * pack // block_m)
    if not problem["causal"]:
        return ((tiles * slots, -(-keys // block_n) / splits),)
    counts: Counter[int] = Counter()
    for tile in range(tiles):
        first_query = tile * block_m // pack
        last_query = min((tile * block_m + block_m - 1) // pack, queries - 1)
        end = max(0, min(keys, last_query + offset + 1))
        first = max(0, first_query + offset - window + 1) if window else 0
        counts[max(0, -(-end // block_n) - first // block_n)] += slots
    return tuple((count, trips / splits) for trips, count in sorted(counts.items(), reverse=True))
