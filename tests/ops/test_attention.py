"""Attention over whole tensors, strided and packed, against its reference."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.layouts import BF16, FP16, FP32, far_apart, normal, surrounded
from tests.ops.rule import assert_within_rule
from tritune.kernels.attention_prefill import (
    SPACE,
    AttentionProblem,
    attention_reference,
    attention_varlen_reference,
    default_config,
)
from tritune.ops import attention as op
from tritune.ops.attention import attention, attention_varlen

Tensors = tuple[torch.Tensor, ...]


def inputs(
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    queries: int = 70,
    keys: int | None = None,
    size: int = 32,
    value_size: int | None = None,
    dtype: torch.dtype = FP32,
    seed: int = 0,
) -> Tensors:
    keys = queries if keys is None else keys
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        normal(batch, heads, queries, size, dtype=dtype, seed=seed),
        normal(batch, kv_heads, keys, size, dtype=dtype, seed=seed + 1),
        normal(batch, kv_heads, keys, value_size or size, dtype=dtype, seed=seed + 2),
    )


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **flags: Any) -> torch.Tensor:
    """The op under the rule, its log-sum-exp, and that a second run gives the same bits."""
    out, lse = attention(q, k, v, return_lse=True, **flags)
    assert out.is_contiguous() and lse.dtype == FP32
    exact, exact_lse = attention_reference(*(t.double() for t in (q, k, v)), **flags)
    plain, _ = attention_reference(q, k, v, **flags)
    judge(out, lse, exact, exact_lse, plain, flags)
    assert torch.equal(attention(q, k, v, return_lse=True, **flags)[0], out)
    return out


def check_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *starts: torch.Tensor, **flags: Any
) -> torch.Tensor:
    lengths = [int(s.diff().max()) for s in starts]
    out, lse = attention_varlen(q, k, v, *starts, *lengths, return_lse=True, **flags)
    exact, exact_lse = attention_varlen_reference(
        *(t.double() for t in (q, k, v)), *starts, **flags
    )
    plain, _ = attention_varlen_reference(q, k, v, *starts, **flags)
    judge(out, lse, exact, exact_lse, plain, flags)
    return out


def judge(
    out: torch.Tensor,
    lse: torch.Tensor,
    exact: torch.Tensor,
    exact_lse: torch.Tensor,
    plain: torch.Tensor,
    flags: dict[str, Any],
) -> None:
    # The rule wants the exact result in fp32 for 16-bit inputs; float64 is stricter.
    assert_within_rule(out, exact, plain, slack=3.0 if flags.get("softcap") else 2.0)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


# What a call can ask for, each compiled once; shapes are drawn for each.
VARIANTS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "full": (FP32, {}),
    "causal": (FP32, {"causal": True}),
    "causal in fp16": (FP16, {"causal": True}),
    "causal in bf16": (BF16, {"causal": True}),
    "scale": (BF16, {"scale": -0.3}),
    "window": (FP32, {"causal": True, "window": 40}),
    "softcap": (FP32, {"softcap": 2.0}),
    "softcap in bf16": (BF16, {"softcap": 20.0, "causal": True}),
    "boolean mask": (FP32, {"mask": "boolean"}),
    "additive mask": (FP16, {"mask": "additive", "causal": True}),
    "alibi": (FP32, {"alibi_slopes": True}),
    "sinks": (FP32, {"sinks": True, "causal": True}),
    "all at once": (
        FP32,
        {"softcap": 5.0, "mask": "additive", "alibi_slopes": True, "sinks": True, "window": 50},
    ),
}


def materialise(flags: dict[str, Any], shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Tensors for the flags that are ones: masks that broadcast, and numbers per head."""
    flags = dict(flags)
    if kind := flags.get("mask"):
        batch, heads, queries, keys = shape
        sizes = (batch, 1, 1) if seed % 2 else (heads, queries)
        # Rows of an odd length: how strides divide would make another kernel of it.
        mask = normal(*sizes, keys + 1 + keys % 2, seed=seed)[..., :keys]
        flags["mask"] = (
            mask > -0.5 if kind == "boolean" else mask.masked_fill(mask > 1.5, -math.inf)
        )
    for name in ("alibi_slopes", "sinks"):
        if flags.get(name):
            flags[name] = normal(shape[1], seed=seed + len(name)) * 0.5
    return flags


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=5)
@given(
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    queries=st.integers(65, 128),
    keys=st.integers(65, 200),
    seed=st.integers(0, 99),
)
def test_every_variant_follows_the_reference(
    variant: str, batch: int, kv_heads: int, group: int, queries: int, keys: int, seed: int
) -> None:
    dtype, flags = VARIANTS[variant]
    heads = kv_heads * group
    q, k, v = inputs(batch, heads, kv_heads, queries, keys, dtype=dtype, seed=seed)
    check(q, k, v, **materialise(flags, (batch, heads, queries, keys), seed))


@pytest.mark.parametrize(
    ("size", "value_size", "dtype"),
    [
        (16, 16, BF16),
        (80, 80, FP32),
        (96, 96, FP16),
        (112, 112, BF16),
        (128, 64, FP32),
        (192, 128, BF16),
        (72, 24, FP32),
        (256, 256, FP16),
        (5, 1, FP32),
    ],
)
def test_head_sizes(size: int, value_size: int, dtype: torch.dtype) -> None:
    q, k, v = inputs(size=size, value_size=value_size, dtype=dtype, queries=66, keys=70)
    check(q, k, v, causal=True)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 1), (2, 2)])
def test_one_token_sees_a_whole_cache(heads: int, kv_heads: int) -> None:
    q, k, v = inputs(2, heads, kv_heads, queries=1, keys=150)
    check(q, k, v, causal=True, alibi_slopes=normal(heads), sinks=normal(heads, seed=1))


@pytest.mark.parametrize("window", [1, 16, 1000])
def test_a_window_is_the_latest_keys_the_query_included(window: int) -> None:
    q, k, v = inputs(queries=9, keys=40, size=16)
    out = check(q, k, v, causal=True, window=window)
    if window == 1:
        torch.testing.assert_close(out, v[:, :, -9:])
    # A window ends at the query in any case.
    assert torch.equal(attention(q, k, v, window=window, return_lse=True)[0], out)


def test_queries_before_the_first_key_get_zeros() -> None:
    q, k, v = inputs(queries=90, keys=20)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    check(q, k, v, causal=True)
    assert not out[:, :, :70].any() and (lse[:, :, :70] == -math.inf).all()
    assert out[:, :, 70:].all() and lse[:, :, 70:].isfinite().all()


@pytest.mark.parametrize("additive", [False, True])
def test_fully_masked_rows_get_zeros(additive: bool) -> None:
    q, k, v = inputs(queries=70)
    mask = torch.ones(70, 70, dtype=torch.bool)
    mask[[0, 33, 69]] = False
    given_mask = torch.zeros(70, 70).masked_fill(~mask, -math.inf) if additive else mask
    out, lse = attention(q, k, v, mask=given_mask, return_lse=True)
    assert not out[:, :, [0, 33, 69]].any()
    assert (lse[:, :, [0, 33, 69]] == -math.inf).all()
    check(q, k, v, mask=given_mask)


def test_a_fully_masked_row_with_a_sink_has_the_sink_as_its_log_sum_exp() -> None:
    q, k, v = inputs(queries=70)
    sinks = torch.tensor([0.5, -math.inf])
    out, lse = attention(q, k, v, mask=torch.zeros(70, dtype=bool), sinks=sinks, return_lse=True)
    assert not out.any()
    torch.testing.assert_close(lse[0, :, 3], sinks)


def test_masks_of_the_lowest_number_weigh_keys_alike_where_they_hide_all() -> None:
    q, k, v = inputs(queries=70)
    mask = torch.zeros(70, 70)
    mask[3], mask[:, 60:] = torch.finfo(FP32).min, torch.finfo(FP32).min
    torch.testing.assert_close(
        attention(q, k, v, mask=mask), attention_reference(q, k, v, mask=mask)[0]
    )


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys"), [(0, 2, 9, 9), (1, 0, 9, 9), (1, 2, 0, 9), (2, 2, 9, 0)]
)
def test_empty_inputs(batch: int, heads: int, queries: int, keys: int) -> None:
    q, k, v = inputs(batch, heads, kv_heads=2, queries=queries, keys=keys)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert out.shape == (batch, heads, queries, 32) and lse.shape == out.shape[:3]
    assert not out.any() and (lse == -math.inf).all()


def test_inputs_of_any_strides() -> None:
    # Heads inside tokens, dims outside, every second token, one sequence for the whole batch.
    q = normal(2, 70, 2, 32).transpose(1, 2)
    k = normal(2, 2, 32, 80).transpose(2, 3)
    v = normal(1, 2, 160, 32)[:, :, ::2].expand(2, 2, 80, 32)
    check(q, k, v, causal=True)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_offsets_past_31_bits(dim: int) -> None:
    near = inputs(queries=70, size=17, dtype=FP16)
    far = [far_apart(t, dim) for t in near]
    assert max(t.stride(dim) * (t.shape[dim] - 1) for t in far) >= 2**31
    assert torch.equal(attention(*far, causal=True), attention(*near, causal=True))


@pytest.mark.parametrize(("queries", "keys", "size"), [(70, 70, 32), (9, 100, 72)])
def test_nan_past_the_tensors_changes_not_one_bit(queries: int, keys: int, size: int) -> None:
    near = (*inputs(queries=queries, keys=keys, size=size), normal(1, 2, queries, keys))
    guarded = [surrounded(tensor, math.nan) for tensor in near]
    results = [
        attention(q, k, v, mask=mask, causal=True, return_lse=True)
        for q, k, v, mask in (near, guarded)
    ]
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_nan_in_keys_that_are_out_of_reach_changes_not_one_bit() -> None:
    q, k, v = inputs(queries=200)
    out = attention(q, k, v, window=30)
    for tensor in (k, v):
        tensor[:, :, :64] = math.nan
    # Queries from 128 on see keys from 99 on, and their programs read whole blocks from 64 on.
    assert torch.equal(attention(q, k, v, window=30)[:, :, 128:], out[:, :, 128:])


def packed(
    q_lengths: list[int],
    k_lengths: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    dtype: torch.dtype = FP32,
    integer: torch.dtype = torch.int32,
) -> Tensors:
    starts = [
        torch.tensor([0, *lengths], dtype=integer).cumsum(0, dtype=integer)
        for lengths in (q_lengths, k_lengths)
    ]
    return (
        normal(sum(q_lengths), heads, 32, dtype=dtype),
        normal(sum(k_lengths), kv_heads, 32, dtype=dtype, seed=1),
        normal(sum(k_lengths), kv_heads, 32, dtype=dtype, seed=2),
        *starts,
    )


@pytest.mark.parametrize("variant", ["causal", "full", "all at once"])
@settings(max_examples=6)
@given(lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 90)), max_size=4))
def test_packed_sequences_follow_the_reference(
    variant: str, lengths: list[tuple[int, int]]
) -> None:
    dtype, flags = VARIANTS[variant]
    flags = {name: value for name, value in flags.items() if name != "mask"}
    # One that is long, so that all are cut into the same tiles.
    lengths = [*lengths, (100, 120)]
    tensors = packed([q for q, _ in lengths], [k for _, k in lengths], dtype=dtype)
    check_varlen(*tensors, **materialise(flags, (1, 4, 0, 0), 0))


def test_packed_tokens_of_empty_sequences_and_single_ones() -> None:
    check_varlen(*packed([1, 0, 1, 3, 1], [5, 4, 0, 3, 1], integer=torch.int64), causal=True)


def test_a_packed_sequence_does_not_see_its_neighbours() -> None:
    q, k, v, q_starts, k_starts = packed([70, 33, 20], [70, 50, 20])
    out = check_varlen(q, k, v, q_starts, k_starts, causal=True)
    for tensor in (k, v):
        tensor[:70], tensor[120:] = math.nan, math.nan
    ours = attention_varlen(q, k, v, q_starts, k_starts, 70, 70, causal=True)
    assert torch.equal(ours[70:103], out[70:103])
    assert ours[:70].isnan().any() and ours[103:].isnan().any()


def test_no_packed_sequences() -> None:
    q, k, v, q_starts, k_starts = packed([], [])
    out, lse = attention_varlen(q, k, v, q_starts, k_starts, 0, 0, return_lse=True)
    assert out.shape == (0, 4, 32) and lse.shape == (0, 4)


@pytest.fixture
def use_config(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the op use a config of one's choice."""

    def use(**values: Any) -> None:
        config = {p.name: p.values[0] for p in SPACE.parameters_on("cpu")}
        monkeypatch.setattr(op, "config_for", lambda *_: {**config, **values})

    return use


CONFIGS = [
    {"BLOCK_M": 16, "BLOCK_N": 128, "PACK_HEADS": True, "MASKED_FIRST": True, "PRE_LOAD_V": True},
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
    ids=str,
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


def test_torch_accepts_the_registration() -> None:
    q, k, v = inputs(queries=5, size=16)
    strided = (q, k, v, True, 0.25, 3, 2.0, torch.ones(5, dtype=bool), None, None)
    sequences = (*packed([3, 2], [4, 2]), 3, 4, True, 0.25, None, None, None, None)
    torch.library.opcheck(op._attention_lse, strided)
    torch.library.opcheck(op._varlen_lse, sequences)
    # Without the log-sum-exp they are the same functions: what differs is what they return.
    returned = ("test_schema", "test_faketensor")
    torch.library.opcheck(op._attention, strided, test_utils=returned)
    torch.library.opcheck(op._varlen, sequences, test_utils=returned)


def test_compiles_into_one_graph_for_all_lengths() -> None:
    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out, lse = attention(q, k, v, causal=True, window=5, return_lse=True)
        return out * 2 + lse[..., None]

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, queries in ((2, 9), (3, 12), (4, 15)):
        tensors = inputs(batch, queries=queries, keys=queries + 3, size=16)
        # After two shapes every size that may change is known.
        with torch._dynamo.config.patch(error_on_recompile=batch > 3):
            assert torch.equal(compiled(*tensors), layer(*tensors))


def test_packed_compiles_into_one_graph() -> None:
    tensors = packed([3, 2], [4, 2])

    def layer(*tensors: torch.Tensor) -> torch.Tensor:
        return attention_varlen(*tensors, 3, 4, causal=True) + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors), layer(*tensors))


def test_exports() -> None:
    class Layer(torch.nn.Module):
        def forward(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *packs: torch.Tensor
        ) -> Tensors:
            return attention(q, k, v, softcap=3.0), attention_varlen(*packs, 3, 4, return_lse=True)

    tensors = (*inputs(queries=5, size=16), *packed([3, 2], [4, 2]))
    exported = torch.export.export(Layer(), tensors).module()
    torch.testing.assert_close(exported(*tensors), Layer()(*tensors), rtol=0, atol=0)


def bad(changes: dict[str, Any]) -> None:
    q, k, v = inputs(queries=5, size=16)
    arguments = {"q": q, "k": k, "v": v, **changes}
    attention(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": normal(2, 5, 16)}, "q has 3 dimensions, allowed: 4"),
        ({"q": normal(1, 2, 5, 16).double()}, "q is float64, allowed: float32, float16, bfloat16"),
        ({"q": normal(1, 2, 5, 16).half()}, "q is float16, k is float32, v is float32, allowed: o"),
        ({"q": normal(1, 3, 5, 16)}, "q has 3 heads and k 2, allowed: a multiple of k's"),
        ({"q": normal(1, 2, 5, 8)}, "q has a head size of 8 and k of 16, allowed: the same"),
        ({"q": normal(3, 2, 5, 16)}, "q has a batch of 3 and k of 1"),
        ({"v": normal(1, 2, 4, 16)}, r"k is \(1, 2, 5, 16\) and v \(1, 2, 4, 16\), allowed"),
        ({"v": normal(1, 2, 5, 300)}, "v has a head size of 300, allowed: 1 to 256"),
        ({"window": 0}, "window is 0, allowed: 1 and more"),
        ({"softcap": -1.0}, "softcap is -1.0, allowed: more than 0"),
        ({"sinks": normal(3)}, "sinks has 3 entries, allowed: one for each of q's 2 heads"),
        ({"alibi_slopes": normal(1, 2)}, "alibi_slopes has 2 dimensions, allowed: 1"),
        ({"mask": normal(4, 5)}, r"mask is \(4, 5\), allowed: what can be broadcast to \(1, 2, 5"),
        ({"mask": torch.ones(5, dtype=int)}, "mask is int64, allowed: bool, float32"),
        ({"k": torch.empty(1, 2, 5, 16, device="meta")}, "several devices: q on cpu, k on meta"),
        ({"q": normal(1, 2, 5, 16).requires_grad_()}, "q requires a gradient"),
        ({"q": None}, "q is a NoneType, not a tensor"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^attention: .*{message}"):
        bad(changes)


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(ValueError, match=r"window is 0.*; softcap is 0.*; q has 3 heads"):
        bad({"window": 0, "softcap": 0.0, "q": normal(1, 3, 5, 16)})


@pytest.mark.parametrize("fullgraph", [False, True])
def test_bad_input_is_refused_in_compiled_code(fullgraph: bool) -> None:
    # Once it has met an error, torch does not compile a function again.
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=fullgraph, backend="aot_eager")
    # With `fullgraph`, torch reports whatever is raised as an error of its own, with the message.
    error = torch._dynamo.exc.Unsupported if fullgraph else ValueError
    with pytest.raises(error, match="attention: q has 3 heads and k 2, allowed: a multiple of k's"):
        compiled(normal(1, 3, 5, 16), normal(1, 2, 5, 16), normal(1, 2, 5, 16))


def test_inputs_that_require_a_gradient_are_fine_without_grad_mode() -> None:
    q, k, v = inputs(queries=5, size=16)
    with torch.no_grad():
        assert attention(q.requires_grad_(), k, v).shape == q.shape


@pytest.mark.parametrize(
    ("starts", "longest", "message"),
    [
        (
            [0, 3],
            (3, 3),
            "cu_seqlens_k has 2 entries|cu_seqlens_q has 3 entries and cu_seqlens_k 2",
        ),
        ([0, 9, 6], (3, 9), "cu_seqlens_k decreases"),
        ([0, 4, 7], (3, 4), "cu_seqlens_k goes from 0 to 7, allowed: from 0 to 6, the number of t"),
        ([1, 4, 6], (3, 4), "cu_seqlens_k goes from 1 to 6"),
        ([0, 4, 6], (3, 3), "max_seqlen_k is 3, allowed: at least the longest length, 4"),
        ([0, 4, 6], (1, 4), "max_seqlen_q is 1, allowed: at least the longest length, 3"),
        ([0.0, 4.0, 6.0], (3, 4), "cu_seqlens_k is float32, allowed: int32, int64"),
    ],
)
def test_bad_cumulative_lengths_are_refused(
    starts: list[Any], longest: tuple[int, int], message: str
) -> None:
    q, k, v, q_starts, k_starts = packed([3, 2], [4, 2])
    k_starts = torch.tensor(starts, dtype=FP32 if isinstance(starts[0], float) else torch.int32)
    with pytest.raises(ValueError, match=f"^attention_varlen: .*({message})"):
        attention_varlen(q, k, v, q_starts, k_starts, *longest)
