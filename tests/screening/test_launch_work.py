"""The work of a launch follows the loops of the kernels."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritune.errors import TrituneError
from tritune.screening.launch_work import WORKS, work_of
from tritune.targets.limits import limits_of
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

A100, MI300, H100 = (limits_of(Target.parse(text)) for text in ("cuda:80", "hip:gfx942", "cuda:90"))
ATTENTION = {
    "batch": 2, "heads": 8, "group": 4, "queries": 512, "keys": 512, "head_size": 128,
    "value_size": 128, "dtype": "float16", "causal": False, "window": 0,
}  # fmt: skip
TILE = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}


def work(problem: dict[str, Any] = {}, config: dict[str, Any] = {}, limits: Any = A100) -> Any:  # noqa: B006
    return work_of("attention", {**ATTENTION, **problem}, {**TILE, **config}, limits)


def test_every_kernel_of_the_catalog_has_its_work():
    kernels = {workload.kernel.name for workload in WORKLOADS.values()}
    assert kernels == set(WORKS)


@pytest.mark.parametrize("limits", [A100, MI300], ids=lambda limits: str(limits.target))
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_the_default_config_of_every_op_has_work_to_do(name: str, limits: Any):
    workload = WORKLOADS[name]
    problem = workload.problem()
    target = limits.target
    config = workload.kernel.default(problem, target.family, target.arch)
    found = work_of(workload.kernel.name, problem.fields(), config.as_kwargs(), limits)
    assert found.programs > 0
    assert found.total_iterations > 0
    work = workload.work(problem)
    assert found.memory_bytes >= 0.5 * (work.read_bytes + work.written_bytes)
    if found.iteration.matrix_flops:
        flops = workload.work(problem).flops
        assert found.total_iterations * found.iteration.matrix_flops >= 0.99 * flops


def test_a_kernel_without_a_model_is_an_error_that_lists_the_others():
    with pytest.raises(TrituneError, match="'convolution', known: attention, "):
        work_of("convolution", {}, {}, A100)


def test_programs_are_tiles_of_heads_and_trips_are_blocks_of_keys():
    found = work()
    assert found.groups == ((4 * 8 * 2, 8),)
    assert found.iteration.matrix_flops == 4 * 128 * 64 * 128
    assert found.iteration.global_bytes == 64 * 256 * 2


def test_splits_and_packed_heads_change_the_programs():
    assert work(config={"NUM_SPLITS": 4}).groups == ((4 * 8 * 2 * 4, 2),)
    assert work(config={"NUM_SPLITS": 4}).merged_bytes == 4 * 4 * 512 * 8 * 2 * 128
    packed = work({"queries": 16}, {"PACK_HEADS": True, "BLOCK_M": 64})
    assert packed.programs == 2 * 2


@given(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from([16, 64]), st.sampled_from([16, 32])
)
def test_causal_trips_are_the_blocks_that_some_row_sees(
    queries: int, keys: int, block_m: int, block_n: int
):
    one = {"batch": 1, "heads": 1, "group": 1, "causal": True}
    found = work(
        {**one, "queries": queries, "keys": keys}, {"BLOCK_M": block_m, "BLOCK_N": block_n}
    )
    total = 0
    for tile in range(-(-queries // block_m)):
        rows = range(tile * block_m, min(queries, (tile + 1) * block_m))
        positions = [row + keys - queries for row in rows]
        total += len({key // block_n for at in positions for key in range(min(at + 1, keys))})
    assert found.total_iterations == total


def test_a_window_leaves_the_blocks_that_it_touches():
    windowed = work({"causal": True, "window": 64, "keys": 4096})
    assert windowed.longest == 3


def test_longest_programs_start_first():
    trips = [trips for _, trips in work({"causal": True}).groups]
    assert trips == [8, 6, 4, 2]


def test_a_mask_may_begin_at_the_first_key_instead_of_ending_at_the_last():
    from tritune.screening.launch_work.attention import attention_work

    problem = {**ATTENTION, "causal": True, "queries": 128, "keys": 1024}
    assert attention_work(problem, TILE, A100).longest == 16
    assert attention_work(problem, TILE, A100, diagonal=0).longest == 2


def test_more_warps_than_rows_compute_the_same_twice():
    few, many = (work(config={"BLOCK_M": 32, "num_warps": warps}) for warps in (2, 4))
    assert many.iteration.matrix_flops == 2 * few.iteration.matrix_flops
    assert many.iteration.global_bytes == few.iteration.global_bytes


def test_hoppers_instructions_read_operands_once_for_64_rows():
    assert work(limits=H100).iteration.shared_bytes < work(limits=A100).iteration.shared_bytes / 2


def test_bf16_costs_more_where_no_instruction_rounds_it():
    plain, rounded = (work({"dtype": dtype}, limits=MI300) for dtype in ("float16", "bfloat16"))
    assert rounded.iteration.vector_ops > plain.iteration.vector_ops
    assert work({"dtype": "bfloat16"}).iteration == work().iteration


def test_quantized_weights_are_read_in_their_own_size():
    problem = {"rows": 16, "n": 4096, "k": 4096, "dtype": "float16"}
    config = {"METHOD": "dot", "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4}
    full = work_of("linear", problem, config, A100)
    quarter = work_of("linear_quantized", {**problem, "bits": 4, "group": 128}, config, A100)
    assert quarter.memory_bytes < full.memory_bytes / 3
    assert quarter.iteration.vector_ops > full.iteration.vector_ops
