"""Estimates grow with the work, name what bounds it, and are near what was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tritune.screening.launch_work import work_of
from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import limits_of
from tritune.targets.ranking import LaunchWork, Phase, estimate, explain
from tritune.targets.target import Target

A100, MI300 = (limits_of(Target.parse(text)) for text in ("cuda:80", "hip:gfx942"))
SMALL = BinaryFacts(registers=64, spill_bytes=0, shared_bytes=16384, code_bytes=8192)


def attention(length: int, config: dict[str, int], limits: Any = A100) -> LaunchWork:
    problem = {
        "batch": 1, "heads": 32, "group": 4, "queries": length, "keys": length, "head_size": 128,
        "value_size": 128, "dtype": "float16", "causal": True, "window": 0,
    }  # fmt: skip
    return work_of("attention", problem, config, limits)


def tile(block_m: int, block_n: int, warps: int, stages: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "num_stages": stages}


@pytest.mark.parametrize(
    ("length", "config", "facts", "measured_us"),
    [
        # triton-dejavu's times of its best configs on an A100, and facts of the same tiles here.
        (128, tile(32, 32, 4, 2), BinaryFacts(177, 0, 26624, 15000), 11.8),
        (512, tile(128, 64, 8, 4), BinaryFacts(253, 0, 131072, 38000), 38.0),
        (1024, tile(128, 64, 8, 4), BinaryFacts(253, 0, 131072, 38000), 101.0),
        (4096, tile(128, 128, 8, 2), BinaryFacts(255, 112, 98304, 70000), 956.1),
    ],
    ids=["128", "512", "1024", "4096"],
)
def test_estimates_are_near_the_times_of_a_real_gpu(
    length: int, config: dict[str, int], facts: BinaryFacts, measured_us: float
):
    found = estimate(attention(length, config), facts, A100).seconds * 1e6
    assert measured_us / 1.6 < found < measured_us * 1.6


def test_what_cannot_be_launched_takes_for_ever_and_says_why():
    found = estimate(
        attention(1024, tile(128, 64, 8, 2)), replace(SMALL, shared_bytes=1 << 20), A100
    )
    assert found.seconds == math.inf
    assert explain(found) == (
        "cannot be launched: 1048576 bytes of shared memory per block, allowed: 166912"
    )


@pytest.mark.parametrize("limits", [A100, MI300], ids=lambda limits: str(limits.target))
def test_more_of_anything_never_makes_it_faster(limits: Any):
    config = tile(64, 64, 4, 2)
    base = estimate(attention(1024, config, limits), SMALL, limits).seconds
    assert estimate(attention(2048, config, limits), SMALL, limits).seconds > base
    for worse in (
        replace(SMALL, registers=200),
        replace(SMALL, spill_bytes=256),
        replace(SMALL, shared_bytes=60000),
        replace(SMALL, code_bytes=10**6),
    ):
        assert estimate(attention(1024, config, limits), worse, limits).seconds >= base


def test_asking_in_advance_hides_latency_where_trips_are_many():
    once, twice = (attention(4096, tile(16, 16, 1, stages)) for stages in (1, 2))
    alone = replace(SMALL, shared_bytes=160000)
    assert estimate(twice, alone, A100).seconds < estimate(once, alone, A100).seconds


def launch(programs: int, iterations: float = 64, **phase: float) -> LaunchWork:
    return LaunchWork(
        num_warps=4, dtype="float16", groups=((programs, iterations),), iteration=Phase(**phase),  # type: ignore[arg-type]
        once=Phase(), stages=2, memory_bytes=phase.pop("memory", 0.0),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (launch(2000, matrix_flops=4e6, vector_ops=1e3), "matrix"),
        (launch(2000, vector_ops=1e6), "vector"),
        (launch(2000, shared_bytes=1e6, vector_ops=1e3), "shared memory"),
        (launch(2000, global_bytes=1e6, vector_ops=1e3, waits=1), "cache"),
        (replace(launch(2000, vector_ops=1e3), memory_bytes=1e10), "memory"),
        (launch(8, iterations=4096, matrix_flops=1e4, vector_ops=1e2, barriers=8), "latency"),
        (launch(8, iterations=1, vector_ops=1e2), "launch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_bound_is_what_takes_longest(work: LaunchWork, bound: str):
    assert estimate(work, SMALL, A100).bound == bound


def test_a_perfect_product_takes_the_time_of_its_operations():
    work = launch(A100.cores * 64, matrix_flops=4e6)
    ideal = work.total_iterations * 4e6 / A100.flops_for("float16")
    assert estimate(work, SMALL, A100).seconds == pytest.approx(ideal, rel=0.1)


def test_reading_takes_the_time_of_the_memory():
    work = replace(launch(20000, iterations=1, vector_ops=1e3), memory_bytes=2e9)
    ideal = 2e9 / A100.memory_bytes_per_second
    assert estimate(work, SMALL, A100).seconds == pytest.approx(ideal, rel=0.1)


def test_one_block_more_than_fits_costs_another_round():
    room = estimate(launch(1, matrix_flops=4e6), SMALL, A100).occupancy.blocks_per_core
    full, more = (
        estimate(launch(A100.cores * room + extra, matrix_flops=4e6), SMALL, A100)
        for extra in (0, 1)
    )
    assert more.seconds > 1.1 * full.seconds


def test_an_explanation_has_a_line_for_each_question():
    found = estimate(attention(4096, tile(128, 64, 8, 2)), BinaryFacts(249, 0, 65536, 34560), A100)
    lines = explain(found).splitlines()
    assert lines[0].startswith("about ")
    assert "on A100-SXM4-80GB, bound by" in lines[0]
    assert lines[1] == (
        "a thread has 249 registers; a block has 65536 bytes of shared memory; "
        "the code has 34560 bytes"
    )
    assert "room for 1 blocks of 8 warps (12% of its warps, limited by registers)" in lines[2]
    assert lines[3].startswith("clocks of a block's iteration: matrix 2047, vector ")
    assert lines[4].startswith("time: launch 3.0 us, code ")
    assert found.iteration_clocks["matrix"] > 0 and found.parts["cores"] > 0
