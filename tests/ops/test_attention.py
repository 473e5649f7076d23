"""Attention over whole tensors, strided and packed, against its reference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.attention_calls import Tensors, check, check_varlen, inputs, materialise, packed
from tests.ops.layouts import BF16, FP16, FP32, far_apart, normal
from tritune.kernels.attention import (
    SPACE,
    AttentionProblem,
    attention_reference,
    default_config,
)
from tritune.ops.attention import attention, attention_varlen
from tritune.ops.call.attention_checks import LARGEST_HEAD
from tritune.testing import surrounded

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


def test_torch_accepts_the_registration() -> None:
    q, k, v = inputs(queries=5, size=16)
    strided = (q, k, v, True, 0.25, 3, 2.0, torch.ones(5, dtype=bool), None, None)
    sequences = (*packed([3, 2], [4, 2]), 3, 4, True, 0.25, None, None, None, None)
    ops = torch.ops.tritune
    torch.library.opcheck(ops.attention_lse.default, strided)
    torch.library.opcheck(ops.attention_varlen_lse.default, sequences)
    # Without the log-sum-exp they are the same functions: what differs is what they return.
    returned = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.attention.default, strided, test_utils=returned)
    torch.library.opcheck(ops.attention_varlen.default, sequences, test_utils=returned)


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
        ({"scale": "a"}, "scale is 'a', allowed: a number"),
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


def problem_of(**changes: Any) -> AttentionProblem:
    fields = {
        "batch": 1, "heads": 32, "group": 4, "queries": 1024, "keys": 1024, "head_size": 128,
        "value_size": 128, "dtype": "float32", "causal": False, "window": 0, "softcap": False,
        "mask": "none", "alibi": False,
    }  # fmt: skip
    return AttentionProblem(**{**fields, **changes})


@pytest.mark.parametrize(
    ("family", "arch"),
    [("cpu", "host"), ("cuda", 80), ("cuda", 120), ("hip", "gfx942"), ("hip", "gfx1100")],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 100, 1024])
@pytest.mark.parametrize("size", [64, 96, 128, LARGEST_HEAD])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_default_is_a_point_of_the_space(
    family: str, arch: int | str, causal: bool, queries: int, size: int, dtype: str
) -> None:
    problem = problem_of(
        queries=queries, head_size=size, value_size=size, causal=causal, dtype=dtype
    )
    SPACE.check(default_config(problem, family, arch), family, arch, problem.fields())


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 256),
        ({"causal": True}, 64),
        ({"window": 512}, 64),
        ({"queries": 128, "batch": 4}, 128),
        ({"heads": 8, "group": 1}, 256),
        ({"heads": 8, "group": 1, "queries": 512}, 128),
        ({"heads": 8, "group": 1, "queries": 512, "batch": 2}, 256),
    ],
)
def test_tiles_on_a_cpu_are_tall_where_nothing_is_hidden_and_programs_are_many(
    changes: dict[str, Any], rows: int
) -> None:
    assert default_config(problem_of(**changes), "cpu", "host")["BLOCK_M"] == rows


@pytest.mark.parametrize(
    ("changes", "tile"),
    [
        ({"causal": True}, (64, 32, True)),
        ({"causal": True, "queries": 2048, "keys": 2048}, (64, 32, True)),
        ({"causal": True, "queries": 4096, "keys": 4096}, (64, 64, False)),
        ({"causal": True, "queries": 4096, "keys": 4096, "window": 1024}, (64, 32, True)),
        ({"causal": True, "queries": 256, "keys": 4096}, (64, 64, False)),
        ({"causal": True, "group": 1}, (64, 64, False)),
        ({"causal": True, "queries": 8, "keys": 64}, (32, 32, True)),
        ({"causal": True, "queries": 1, "keys": 512}, (4, 64, True)),
        ({}, (256, 64, False)),
    ],
)
def test_tiles_on_a_cpu_take_heads_together_where_much_of_a_tile_is_hidden(
    changes: dict[str, Any], tile: tuple[int, int, bool]
) -> None:
    config = default_config(problem_of(**changes), "cpu", "host")
    assert (config["BLOCK_M"], config["BLOCK_N"], config["PACK_HEADS"]) == tile


def test_the_longest_tiles_come_first_where_some_are_longer() -> None:
    def last_first(**changes: Any) -> bool:
        config = default_config(problem_of(**changes), "cpu", "host")
        return bool(config["LAST_TILE_FIRST"])

    assert last_first(causal=True)
    assert not last_first() and not last_first(causal=True, window=128)
