"""What constraints allow on a GPU is what the table of architectures says."""

from __future__ import annotations

import random

import pytest

from tritune.kernels import attention, linear, linear_quantized, paged_attention
from tritune.kernels.kernel import Kernel, Problem
from tritune.space import Config, Parameter, Space
from tritune.targets.limits import known_targets, limits_by_name, limits_of
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

TARGETS = [pytest.param(target, id=str(target)) for target in known_targets()]
SIZE = 128
ATTENTION = attention.AttentionProblem(1, 8, 1, 4096, 4096, SIZE, SIZE, "float16")
PAGED = paged_attention.PagedAttentionProblem(
    "float16", "float16", SIZE, SIZE, 8, 4, 16, 512, 8, 4096, True, False, False, False, False
)
PLAIN = linear.LinearProblem(1024, 4096, 4096, "float16", True)
QUANTIZED = linear_quantized.LinearQuantizedProblem(1024, 4096, 4096, "float16", 8, 128, False)
#: The kernels that keep tiles in shared memory.
HOLDING = [
    (attention.KERNEL, ATTENTION),
    (paged_attention.KERNEL, PAGED),
    (linear.KERNEL, PLAIN),
    (linear_quantized.KERNEL, QUANTIZED),
]


def held_bytes(kernel: Kernel, config: Config, family: str) -> int:
    """Bytes of the tiles that a config keeps in shared memory, in 16 bits."""
    stages, block_n = config["num_stages"], config["BLOCK_N"]
    if kernel.name.startswith("linear"):
        return int(2 * stages * config["BLOCK_K"] * (config["BLOCK_M"] + block_n))
    queries = 0
    if kernel is attention.KERNEL:
        # AMD's queries stay in registers, as does the stage that is computed with.
        stages = max(stages - 1, 1) if family == "hip" else stages
        queries = config["BLOCK_M"] * SIZE if family == "cuda" else 0
    return int(2 * (stages * block_n * 2 * SIZE + queries))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "problem"), HOLDING, ids=lambda p: getattr(p, "name", ""))
def test_tiles_fit_into_the_shared_memory_of_the_table(
    kernel: Kernel, problem: Problem, target: Target
) -> None:
    points = kernel.space.on(target.family, target.arch, problem.fields())
    most = max(
        held_bytes(kernel, config, target.family) for config in points.sample(300, random.Random(0))
    )
    allowed = limits_of(target).shared_per_block
    assert allowed / 4 < most <= allowed


@pytest.mark.parametrize("target", TARGETS)
def test_constraints_read_the_limits_of_every_architecture_by_name(target: Target) -> None:
    space = Space(
        (Parameter.integers("BLOCK", 1, "shared_memory_bytes", 1024, ("cuda", "hip")),),
        ("BLOCK > shared_memory_bytes - 1024 or BLOCK * warp_size < 128",),
        limits_by_name,
    )
    allowed = limits_of(target).shared_per_block
    assert max(c["BLOCK"] for c in space.configs(target.family, target.arch)) + 1023 == allowed
    assert space.size("cpu") == 1


def test_an_architecture_that_is_not_known_has_the_least_of_its_vendor() -> None:
    every = [limits_of(target) for target in known_targets() if target.family == "cuda"]
    limits = limits_by_name("cuda", 70)
    assert limits["shared_memory_bytes"] == min(each.shared_per_block for each in every)


def test_a_cpu_has_none_of_the_limits() -> None:
    assert set(limits_by_name("cpu", "x86-64-v3").values()) == {None}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_no_config_has_more_threads_than_a_block(workload, target: Target) -> None:
    limits = limits_of(target)
    [warps] = [
        parameter.domain
        for parameter in workload.kernel.space.parameters_on(target.family)
        if parameter.name == "num_warps"
    ]
    assert max(warps) * limits.warp_size <= limits.threads_per_block


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_default_is_in_the_space(target: Target, dtype: str) -> None:
    def check(kernel: Kernel, problem: Problem) -> None:
        config = kernel.default(problem, target.family, target.arch)
        kernel.space.check(config, target.family, target.arch, problem.fields())

    for size in (64, 128, 256):
        check(
            attention.KERNEL,
            attention.AttentionProblem(1, 8, 1, 4096, 4096, size, size, dtype),
        )
        for queries in (1, 512):
            check(
                paged_attention.KERNEL,
                paged_attention.PagedAttentionProblem(
                    dtype, dtype, size, size, 8, 4, 16, queries, 8, 4096,
                    True, False, False, False, False,
                ),
            )  # fmt: skip
    for rows in (1, 64, 1024):
        check(linear.KERNEL, linear.LinearProblem(rows, 4096, 4096, dtype, True))
        check(
            linear_quantized.KERNEL,
            linear_quantized.LinearQuantizedProblem(rows, 4096, 4096, dtype, 8, 128, False),
        )
