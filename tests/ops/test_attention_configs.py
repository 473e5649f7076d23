"""Attention with configs of all kinds: their results, the space they come from, the defaults."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from tests.ops.attention_calls import check, check_varlen, inputs, materialise, packed
from tests.ops.layouts import FP16, normal
from tritune.kernels.attention import KERNEL, SPACE, AttentionProblem, default_config
from tritune.ops import attention as op
from tritune.ops.attention import attention, attention_varlen
from tritune.policy import forced
from tritune.screening.rejection import register_budget
from tritune.space import Config
from tritune.targets.limits import limits_of
from tritune.targets.target import Target
from tritune.testing import surrounded


@pytest.fixture
def use_config() -> Iterator[Callable[..., Any]]:
    """Makes the op use a config of one's choice."""
    config = {p.name: p.values[0] for p in SPACE.parameters_on("cpu")}
    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(
            forced(KERNEL, Config.of(**{**config, **values}))
        )


CONFIGS = [
    {"BLOCK_M": 16, "BLOCK_N": 128, "PACK_HEADS": True, "MASKED_FIRST": True, "PRE_LOAD_V": True},
    {"BLOCK_M": 8, "BLOCK_N": 32, "PACK_HEADS": True, "prefetch_bytes": 16384},
    {"BLOCK_M": 128, "BLOCK_N": 16, "HEADS_INSIDE": True, "LAST_TILE_FIRST": True},
    {"BLOCK_M": 32, "BLOCK_N": 32, "SPLIT_HEAD": True, "PRE_LOAD_V": True, "micro_m": 4},
    {"BLOCK_M": 64, "BLOCK_N": 32, "PACK_HEADS": True, "micro_n": 1, "unroll": 8},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_any_config_gives_the_result(
    config: dict[str, Any], use_config: Callable[..., None]
) -> None:
    use_config(**config)
    q, k, v = inputs(2, 6, 2, queries=90, keys=130, size=48)
    check(q, k, v, window=70, sinks=normal(6))


SPLIT = {"BLOCK_M": 16, "BLOCK_N": 16}


@pytest.mark.parametrize(
    ("splits", "flags"),
    [
        (2, {}),
        (4, {"causal": True, "sinks": True}),
        (64, {"causal": True, "alibi_slopes": True, "softcap": 3.0}),
        (3, {"window": 40, "sinks": True}),
        (8, {"mask": "additive", "causal": True}),
    ],
)
def test_split_keys_are_merged(
    splits: int, flags: dict[str, Any], use_config: Callable[..., None]
) -> None:
    use_config(**SPLIT, NUM_SPLITS=splits)
    q, k, v = inputs(2, 4, 2, queries=20, keys=150)
    check(q, k, v, **materialise(flags, (2, 4, 20, 150), 0))


def test_rows_without_a_key_are_zero_where_keys_are_split(use_config: Callable[..., None]) -> None:
    use_config(**SPLIT, NUM_SPLITS=4)
    q, k, v = inputs(queries=90, keys=20)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :, :70].any() and (lse[:, :, :70] == -math.inf).all()
    check(q, k, v, causal=True)
    empty = attention(q, k[:, :, :0], v[:, :, :0], sinks=torch.ones(2), return_lse=True)
    assert not empty[0].any() and (empty[1] == 1).all()


@pytest.mark.parametrize("flags", [{}, {"window": 9, "sinks": normal(4)}])
def test_split_keys_of_packed_sequences_are_merged(
    flags: dict[str, Any], use_config: Callable[..., None]
) -> None:
    use_config(**SPLIT, NUM_SPLITS=4, PACK_HEADS=True)
    tensors = packed([1, 0, 20, 3, 1], [150, 4, 0, 40, 1])
    check_varlen(*tensors, causal=True, **flags)


def test_nan_past_the_tensors_changes_not_one_bit_where_keys_are_split(
    use_config: Callable[..., None],
) -> None:
    use_config(**SPLIT, NUM_SPLITS=4)
    near = inputs(queries=3, keys=100, size=24)
    guarded = [surrounded(tensor, math.nan) for tensor in near]
    assert torch.equal(attention(*near, causal=True), attention(*guarded, causal=True))


def test_what_a_tile_cannot_use_is_not_tuned() -> None:
    problem = AttentionProblem(1, 8, 8, 64, 1024, 128, 128, "float16", causal=True)
    default = default_config(problem, "cpu", "x86-64-v4").as_kwargs()
    points = SPACE.on("cpu", "x86-64-v4", problem.fields())
    streams, packs = {"prefetch_bytes": 2048}, {"unroll": 8}
    for block, allowed, refused in ((16, streams, packs), (64, packs, streams)):
        assert Config.of(**{**default, "BLOCK_M": block, **allowed}) in points
        assert Config.of(**{**default, "BLOCK_M": block, **refused}) not in points


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
def test_one_query_of_many_keys_fills_the_device_by_default(family: str) -> None:
    problem = AttentionProblem(1, 8, 8, 1, 16384, 128, 128, "float16", causal=True)
    arch = {"cuda": 90, "hip": "gfx942", "cpu": "x86-64-v4"}[family]
    config = default_config(problem, family, arch)
    assert config["PACK_HEADS"] and config["NUM_SPLITS"] >= 16
    busy = AttentionProblem(64, 32, 1, 1, 16384, 128, 128, "float16", causal=True)
    assert default_config(busy, family, arch)["NUM_SPLITS"] == 1


@pytest.mark.parametrize(
    ("size", "value_size", "split_head"), [(64, 64, False), (80, 80, True), (96, 48, False)]
)
def test_blocks_are_read_by_descriptors(
    size: int, value_size: int, split_head: bool, use_config: Callable[..., None]
) -> None:
    use_config(BLOCK_M=32, BLOCK_N=32, SPLIT_HEAD=split_head, USE_DESCRIPTORS=True)
    q, k, v = inputs(2, 4, 2, queries=40, keys=75, size=size, value_size=value_size, dtype=FP16)
    check(q, k, v, causal=True)
    tokens_outside_heads = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v)]
    check(q, *tokens_outside_heads, causal=True)


def test_descriptors_see_no_neighbouring_sequence(use_config: Callable[..., None]) -> None:
    use_config(BLOCK_M=16, BLOCK_N=32, USE_DESCRIPTORS=True)
    q, k, v, q_starts, k_starts = packed([70, 33, 20], [70, 50, 20])
    out = check_varlen(q, k, v, q_starts, k_starts, causal=True)
    for tensor in (k, v):
        tensor[:70], tensor[120:] = math.nan, math.nan
    ours = attention_varlen(q, k, v, q_starts, k_starts, 70, 70, causal=True)
    assert torch.equal(ours[70:103], out[70:103])


@pytest.mark.parametrize("why", ["dims apart", "rows of odd length", "an odd beginning"])
def test_tensors_that_no_descriptor_can_describe_are_read_by_pointers(
    why: str, use_config: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_config(BLOCK_M=32, BLOCK_N=32, USE_DESCRIPTORS=True)
    monkeypatch.setattr(op, "TensorDescriptor", None)
    q, k, v = inputs(queries=40)
    if why == "dims apart":
        k = k.transpose(2, 3).contiguous().transpose(2, 3)
    elif why == "rows of odd length":
        k = normal(1, 2, 40, 33)[..., :32]
    else:
        k = normal(k.numel() + 1)[1:].view(k.shape)
    check(q, k, v, causal=True)


PROBLEMS = [
    AttentionProblem(4, 32, 4, 4096, 4096, 128, 128, "bfloat16", causal=True),
    AttentionProblem(16, 16, 1, 1024, 1024, 64, 64, "float16"),
    AttentionProblem(1, 32, 1, 2048, 2048, 128, 128, "float32"),
    AttentionProblem(1, 32, 4, 1, 16384, 128, 128, "float16", causal=True),
]
TARGETS = [("cuda", 80), ("cuda", 90), ("hip", "gfx90a"), ("hip", "gfx942"), ("cpu", "x86-64-v4")]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.dtype)
def test_the_space_has_well_over_450_configs(
    problem: AttentionProblem, target: tuple[str, int | str]
) -> None:
    assert SPACE.size(*target, problem.fields()) > 1000


@pytest.mark.parametrize(
    ("target", "absent"),
    [
        (("cuda", 80), {"waves_per_eu", "matrix_instr_nonkdim", "micro_m"}),
        (("hip", "gfx942"), {"USE_DESCRIPTORS", "maxnreg", "micro_m"}),
        (("cpu", "x86-64-v4"), {"USE_DESCRIPTORS", "maxnreg", "num_warps", "num_stages"}),
    ],
    ids=["cuda", "hip", "cpu"],
)
def test_parameters_exist_where_they_mean_something(
    target: tuple[str, int | str], absent: set[str]
) -> None:
    assert absent.isdisjoint(p.name for p in SPACE.parameters_on(target[0]))


@pytest.mark.parametrize(("arch", "used"), [(80, False), (90, True), (120, True)])
def test_descriptors_are_used_where_the_hardware_has_them(arch: int, used: bool) -> None:
    points = SPACE.on("cuda", arch, PROBLEMS[0].fields())
    sample = points.sample(500, random.Random(0))
    assert any(config["USE_DESCRIPTORS"] for config in sample) == used


@pytest.mark.parametrize("name", ["cuda:80", "hip:gfx942", "hip:gfx1100"])
def test_a_tile_fits_into_the_registers_that_a_config_leaves_its_threads(name: str) -> None:
    target = Target.parse(name)
    limits = limits_of(target)
    problem = AttentionProblem(1, 8, 1, 4096, 4096, 128, 128, "float16", causal=True)
    points = SPACE.on(target.family, target.arch, problem.fields())
    for config in points.sample(1000, random.Random(0)):
        threads = config["num_warps"] * limits.warp_size
        tile = config["BLOCK_M"] * (config["BLOCK_N"] + 128)
        assert tile <= threads * register_budget(config, limits)


@pytest.mark.parametrize("queries", [1, 64, 4096])
def test_splits_write_no_more_rows_than_there_are_keys(queries: int) -> None:
    problem = AttentionProblem(1, 8, 1, queries, 4096, 64, 64, "float16")
    most = max(
        config["NUM_SPLITS"]
        for config in SPACE.on("hip", "gfx942", problem.fields()).sample(2000, random.Random(0))
    )
    assert most == {1: 64, 64: 64, 4096: 1}[queries]


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
def test_every_default_is_in_the_space(family: str) -> None:
    archs = {
        "cuda": [80, 89, 90, 100, 120],
        "hip": ["gfx90a", "gfx942", "gfx950", "gfx1100"],
        "cpu": ["x86-64-v4"],
    }
    for arch in archs[family]:
        for size in (16, 64, 80, 128, 192, 256):
            for dtype in ("float32", "bfloat16"):
                for queries, keys in ((1, 1), (1, 4096), (16, 16), (2048, 2048)):
                    for group in (1, 6):
                        problem = AttentionProblem(
                            1, 12, group, queries, keys, size, size, dtype, causal=True
                        )
                        config = default_config(problem, family, arch)
                        SPACE.check(config, family, arch, problem.fields())
