"""Attention to a paged cache: any batch, any page size, quantised caches, split keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tritune.kernels.paged_attention import (
    KERNEL,
    SPACE,
    PagedAttentionProblem,
    default,
    reference,
)
from tritune.ops import paged_attention as module
from tritune.ops.attention import attention, attention_varlen
from tritune.ops.call import trace
from tritune.ops.paged_attention import paged_attention
from tritune.policy import forced
from tritune.space import Config
from tritune.testing import assert_within_rule

HEADS, KV_HEADS = 6, 2
#: Queries and keys of each sequence: a decode, a prefill, one with neither, a continued prefill.
MIXED = [(1, 70), (21, 21), (0, 0), (0, 9), (13, 40), (1, 1)]

FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": {"causal": False},
    "window": {"window": 9},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": torch.linspace(0.05, 0.5, HEADS)},
    "sinks": {"sinks": torch.linspace(-1.0, 4.0, HEADS)},
    "scale": {"scale": 0.5},
    "everything": {
        "window": 30,
        "softcap": 3.0,
        "alibi_slopes": torch.linspace(0.05, 0.5, HEADS),
        "sinks": torch.linspace(-1.0, 4.0, HEADS),
        "scale": 0.4,
    },
}


def batch(
    lengths: list[tuple[int, int]],
    dtype: torch.dtype = torch.float32,
    *,
    kv_dtype: torch.dtype | None = None,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    size: int = 16,
    value_size: int | None = None,
    page_size: int = 16,
    seed: int = 0,
) -> list[torch.Tensor]:
    """The op's tensors in its order; what must not be read is NaN, or -1 in the block table."""
    generator = torch.Generator().manual_seed(seed)
    kv_dtype = kv_dtype or dtype
    queries, keys = [n for n, _ in lengths], [n for _, n in lengths]
    needed = [-(-n // page_size) for n in keys]
    most = max([*needed, 0]) + 1
    pages = torch.randperm(sum(needed) + 2, generator=generator)
    block_table = torch.full((len(lengths), most), -1, dtype=torch.int32)
    caches = [
        torch.full((len(pages), page_size, kv_heads, n), float("nan"))
        for n in (size, value_size or size)
    ]
    for i, count in enumerate(needed):
        block_table[i, :count] = pages[sum(needed[:i]) :][:count]
        for j, page in enumerate(block_table[i, :count].tolist()):
            filled = min(page_size, keys[i] - j * page_size)
            for cache in caches:
                shape = (filled, *cache.shape[2:])
                cache[page, :filled] = torch.randn(shape, generator=generator)
    if kv_dtype == torch.int8:
        caches = [(cache * 40).nan_to_num(127.0).round().clamp(-128, 127) for cache in caches]
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    return [
        torch.randn(sum(queries), heads, size, generator=generator).to(dtype),
        *(cache.to(kv_dtype) for cache in caches),
        block_table,
        torch.tensor(keys, dtype=torch.int32),
        starts,
    ]


def check(tensors: list[torch.Tensor], **flags: Any) -> torch.Tensor:
    """Compare with the reference in a higher precision under the numerical rule."""
    out = paged_attention(*tensors, **flags)
    q, *rest = tensors
    more = torch.float64 if q.dtype == torch.float32 else torch.float32
    slack = 3.0 if flags.get("softcap") else 2.0
    assert_within_rule(
        out, reference(q.to(more), *rest, **flags), reference(q, *rest, **flags), slack
    )
    return out


@pytest.fixture
def use_config() -> Iterator[Any]:
    """Makes the op use a config of one's choice."""
    config = {
        "BLOCK_M": 16,
        "BLOCK_N": 16,
        "NUM_SPLITS": 1,
        "PRE_LOAD_V": False,
        "PEEL": True,
        "SPLIT_HEAD": False,
    }
    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(
            forced(KERNEL, Config.of(**{**config, **values}))
        )


@pytest.mark.parametrize("flags", FLAGS)
def test_prefill_and_decode_in_one_call(flags):
    check(batch(MIXED), **FLAGS[flags])


@pytest.mark.parametrize("flags", ["plain", "everything"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, flags):
    check(batch(MIXED, dtype), **FLAGS[flags])


@pytest.mark.parametrize(("splits", "kv_heads"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("flags", ["plain", "everything"])
def test_any_lengths(flags, splits, kv_heads, use_config):
    use_config(NUM_SPLITS=splits, KV_HEADS=kv_heads)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), min_size=1, max_size=5),
        st.integers(0, 5),
    )
    def holds(lengths, seed):
        check(batch(lengths, seed=seed), **FLAGS[flags])

    holds()


@pytest.mark.parametrize("page_size", [1, 3, 32, 256])
def test_pages_of_any_size(page_size, use_config):
    use_config(PEEL=False)
    check(batch([(1, 70), (9, 300), (5, 5)], page_size=page_size))


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (7, 1), (40, 2)])
def test_query_heads_share_kv_heads(heads, kv_heads, use_config):
    # 20 heads of a group do not fit the 16 rows of a block: groups may begin anywhere in one.
    use_config(PEEL=False)
    check(batch(MIXED, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize(
    ("size", "value_size", "dtype"),
    [
        (24, 40, torch.float32),
        (80, 80, torch.float32),
        (96, 96, torch.bfloat16),
        (112, 112, torch.float16),
        (192, 128, torch.bfloat16),
        (192, 192, torch.float32),
        (256, 256, torch.float16),
        (256, 256, torch.float32),
    ],
)
def test_head_sizes(size, value_size, dtype, use_config):
    use_config(PEEL=False, SPLIT_HEAD=size % 64 != 0)
    check(batch(MIXED, dtype, size=size, value_size=value_size))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float32, torch.float8_e4m3fn),
        (torch.float16, torch.float8_e5m2),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.float32, torch.int8),
        (torch.bfloat16, torch.int8),
    ],
)
def test_quantised_caches(dtype, kv_dtype):
    tensors = batch(MIXED, dtype, kv_dtype=kv_dtype)
    unit = 1 / 40 if kv_dtype == torch.int8 else 1.0
    check(tensors, k_scale=torch.tensor([0.5, 2.0]) * unit, v_scale=torch.tensor(3.0) * unit)


def test_scales_of_all_kinds_are_alike(use_config):
    use_config(PEEL=False)
    tensors = batch(MIXED, kv_dtype=torch.int8)
    results = [
        paged_attention(*tensors, k_scale=scale, v_scale=scale)
        for scale in (torch.tensor(0.25), torch.tensor([0.25]), torch.full((KV_HEADS,), 0.25))
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_fp8_from_its_bits_is_fp8_converted(use_config, monkeypatch):
    use_config(PEEL=False)
    tensors = batch([(3, 300)], torch.float16, kv_dtype=torch.float8_e4m3fn)
    # Every number there is, subnormal ones included, in the pages that are read.
    numbers = [n for n in range(256) if n & 0x7F != 0x7F]
    for cache in tensors[1:3]:
        flat = cache.view(torch.uint8).flatten()
        flat.copy_(torch.tensor(numbers, dtype=torch.uint8).repeat(len(flat))[: len(flat)])
    converted = paged_attention(*tensors, scale=0.001)
    monkeypatch.setattr(module, "_converts_e4m3", lambda _: False)
    assert torch.equal(paged_attention(*tensors, scale=0.001), converted)


@pytest.mark.parametrize(
    ("flags", "splits"), [("plain", 2), ("plain", 16), ("sinks", 16), ("window", 2)]
)
def test_split_keys_are_merged(flags, splits, use_config):
    use_config(NUM_SPLITS=splits, PEEL=False)
    check(batch([(1, 300), (2, 5), (1, 0), (20, 90)]), **FLAGS[flags])


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_program_of_several_kv_heads(flags, dtype, use_config):
    use_config(BLOCK_M=4, KV_HEADS=2, NUM_SPLITS=2)
    check(batch(MIXED, dtype), **FLAGS[flags])


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_every_kv_head_has_its_own_rows_and_scales(kv_heads, use_config):
    tensors = batch([(1, 70), (3, 41)], kv_dtype=torch.int8, heads=8, kv_heads=4)
    scales = {
        "k_scale": torch.tensor([0.01, 0.02, 0.03, 0.04]),
        "v_scale": torch.tensor([4.0, 3.0, 2.0, 1.0]) / 40,
    }
    use_config(BLOCK_M=4)
    one_by_one = check(tensors, **scales)
    use_config(BLOCK_M=4, KV_HEADS=kv_heads)
    assert torch.equal(check(tensors, **scales), one_by_one)


def test_heads_that_would_be_left_over_are_refused(use_config):
    use_config(KV_HEADS=2)
    with pytest.raises(ValueError, match="KV_HEADS is 2, allowed: a divisor of the 3 KV heads"):
        paged_attention(*batch(MIXED, heads=3, kv_heads=3))


def test_kv_heads_that_lie_far_apart(use_config):
    """Heads of 2^30 elements: the fourth one's offset does not fit 32 bits."""
    use_config(BLOCK_M=4, KV_HEADS=4)
    tensors = batch([(1, 40)], torch.bfloat16, heads=4, kv_heads=4)
    expected = check(tensors)
    for place in (1, 2):
        near = tensors[place]
        pages, slots, heads, size = near.shape
        apart = 1 << 30
        # Nothing of it takes memory before it is touched.
        room = torch.empty((heads - 1) * apart + pages * slots * size, dtype=near.dtype)
        far = room.as_strided(near.shape, (slots * size, size, apart, 1))
        tensors[place] = far.copy_(near)
    assert torch.equal(paged_attention(*tensors), expected)


def test_several_kv_heads_of_a_split_head(use_config):
    use_config(BLOCK_M=4, KV_HEADS=2, SPLIT_HEAD=True)
    check(batch(MIXED, size=80, value_size=48))


@pytest.mark.parametrize(
    "config",
    [
        {"PRE_LOAD_V": True},
        {"PRE_LOAD_V": True, "BLOCK_M": 4, "KV_HEADS": 2},
        {"BLOCK_M": 4, "BLOCK_N": 64},
        {"BLOCK_M": 64, "BLOCK_N": 32},
        {"BLOCK_N": 128, "PEEL": False},
        {"micro_m": 4, "micro_n": 2, "unroll": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("flags", ["plain", "window"])
def test_configs_agree(config, flags, use_config):
    use_config(**config)
    check(batch(MIXED), **FLAGS[flags])


@pytest.mark.parametrize(
    "flags",
    [
        {"causal": False, "alibi_slopes": torch.linspace(-0.5, 0.5, HEADS)},
        {"causal": False, "window": 7},
        {"causal": True, "window": 7, "alibi_slopes": torch.linspace(0.05, 0.5, HEADS)},
    ],
    ids=["alibi without causal", "window without causal", "both with causal"],
)
def test_the_three_ops_give_window_and_alibi_one_meaning(flags):
    q, k, v, table, lens, starts = batch([(9, 40)])
    k, v = (cache[table[0, :3].long()].flatten(0, 1)[:40] for cache in (k, v))
    # Said in other words than the references use: query by query.
    scores = torch.full((HEADS, 9, 40), -torch.inf)
    for i in range(9):
        position = i + 31
        for j in range(40):
            if (flags["causal"] or "window" in flags) and j > position:
                continue
            if "window" in flags and j not in range(position - 6, position + 1):
                continue
            product = (q[i].unflatten(0, (KV_HEADS, -1)) * k[j, :, None]).sum(-1).flatten() / 4
            scores[:, i, j] = product + flags.get("alibi_slopes", 0.0) * (j - position)
    weights = scores.softmax(-1).unflatten(0, (KV_HEADS, -1))
    want = torch.einsum("hgqk,khd->qhgd", weights, v).flatten(1, 2)

    ours = paged_attention(q, *batch([(9, 40)])[1:3], table, lens, starts, **flags)
    torch.testing.assert_close(ours, want)
    ends = torch.tensor([0, 40], dtype=torch.int32)
    torch.testing.assert_close(attention_varlen(q, k, v, starts, ends, 9, 40, **flags), want)
    by_batch = (t.transpose(0, 1)[None] for t in (q, k, v))
    torch.testing.assert_close(attention(*by_batch, **flags)[0].transpose(0, 1), want)


def test_few_long_sequences_are_split_by_default(monkeypatch):
    chosen = []
    choose = trace.config_for
    monkeypatch.setattr(
        trace, "config_for", lambda *args: chosen.append(choose(*args)) or chosen[-1]
    )
    check(batch([(1, 2500)]))
    assert chosen[0]["NUM_SPLITS"] > 1


@pytest.mark.parametrize("family", ["cuda", "hip", "cpu"])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_every_default_is_in_a_large_space(family, kv_dtype):
    archs = {
        "cuda": (80, 90, 100, 120),
        "hip": ("gfx90a", "gfx942", "gfx950", "gfx1100"),
        "cpu": ("x86-64-v4",),
    }
    dtype = "bfloat16" if kv_dtype == "int8" else kv_dtype
    for arch in archs[family]:
        for size in (16, 64, 80, 128, 192, 256):
            for queries, keys in ((1, 1), (1, 65536), (16, 16), (512, 1024)):
                for window in (False, True):
                    problem = PagedAttentionProblem(
                        dtype, kv_dtype, size, size, 8, 4, 16, queries, 4, keys, True, window,
                        softcap=False, alibi=False, sinks=False,
                    )  # fmt: skip
                    fields = problem.fields()
                    SPACE.check(default(problem, family, arch), family, arch, fields)
                    if size == 128 and queries == 512:
                        assert SPACE.size(family, arch, fields) > 450


@pytest.mark.parametrize(
    ("kv_heads", "group", "queries", "size", "kv_dtype", "heads", "keys_at_once"),
    [
        pytest.param(8, 4, 1, 128, "bfloat16", 8, 16, id="all of them"),
        pytest.param(8, 4, 1, 128, "float32", 8, 16, id="never less than 16 keys"),
        pytest.param(32, 1, 1, 128, "bfloat16", 8, 16, id="eight of many"),
        pytest.param(2, 4, 1, 128, "bfloat16", 2, 64, id="short rows of keys"),
        pytest.param(6, 4, 1, 128, "bfloat16", 2, 64, id="a power of two"),
        pytest.param(8, 8, 1, 128, "bfloat16", 4, 32, id="as many as the cache holds"),
        pytest.param(8, 4, 4, 128, "bfloat16", 1, 256, id="more rows"),
        pytest.param(1, 8, 1, 128, "bfloat16", 1, 256, id="there is one"),
    ],
)
def test_a_cpu_decodes_several_kv_heads_at_once(
    kv_heads, group, queries, size, kv_dtype, heads, keys_at_once
):
    problem = PagedAttentionProblem(
        kv_dtype, kv_dtype, size, size, kv_heads, group, 16, queries, 4, 4096, True,
        window=False, softcap=False, alibi=False, sinks=False,
    )  # fmt: skip
    config = default(problem, "cpu", "x86-64-v4")
    assert (config["KV_HEADS"], config["BLOCK_N"]) == (heads, keys_at_once)
    SPACE.check(config, "cpu", "x86-64-v4", problem.fields())
    assert "KV_HEADS" not in default(problem, "cuda", 90)


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "keys_at_once"),
    [(1024, 1024, True, 32), (4096, 4096, True, 64), (256, 4096, True, 64), (512, 512, False, 64)],
)
def test_tiles_on_a_cpu_have_fewer_keys_where_much_of_a_tile_is_hidden(
    queries, keys, causal, keys_at_once
):
    problem = PagedAttentionProblem(
        "bfloat16", "bfloat16", 128, 128, 8, 4, 16, queries, 1, keys, causal,
        window=False, softcap=False, alibi=False, sinks=False,
    )  # fmt: skip
    assert default(problem, "cpu", "x86-64-v4")["BLOCK_N"] == keys_at_once


@pytest.mark.parametrize("flags", ["plain", "everything"])
def test_two_runs_agree_bit_for_bit(flags):
    tensors = batch(MIXED)
    assert torch.equal(
        paged_attention(*tensors, **FLAGS[flags]), paged_attention(*tensors, **FLAGS[flags])
    )


@pytest.mark.parametrize(("splits", "kv_heads"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("flags", ["plain", "everything"])
def test_what_lies_outside_is_not_read(flags, splits, kv_heads, use_config):
    use_config(NUM_SPLITS=splits, KV_HEADS=kv_heads)
    tensors = batch(MIXED)
    out = paged_attention(*tensors, **FLAGS[flags])
    assert out.isfinite().all()
    other = [t.nan_to_num(7.0) if t.is_floating_point() else t.clone() for t in tensors]
    other[3][other[3] == -1] = 0
    assert torch.equal(out, paged_attention(*other, **FLAGS[flags]))


@pytest.mark.parametrize(("splits", "kv_heads"), [(1, 1), (3, 1), (3, 2)])
def test_a_nan_that_is_seen_is_not_hidden(splits, kv_heads, use_config):
    use_config(NUM_SPLITS=splits, KV_HEADS=kv_heads)
    q, k, *rest = batch([(1, 70), (1, 20)])
    k[rest[1][0, 0], 3, 0] = float("nan")
    out = paged_attention(q, k, *rest)
    # The first sequence's key is one of KV head 0, which half of the heads look at.
    assert out[0, : HEADS // KV_HEADS].isnan().all()
    assert out[0, HEADS // KV_HEADS :].isfinite().all()
    assert out[1].isfinite().all()


def test_pages_that_left_the_window_are_not_read(use_config):
    use_config()
    q, k, v, table, lens, starts = batch([(2, 100)])
    out = paged_attention(q, k, v, table, lens, starts, window=20)
    table[0, :5] = -1  # the first query sees the keys from 79 on, the page of 64 to 79 among them
    with pytest.raises(ValueError, match=r"block_table\[0, 4\] is page -1"):
        paged_attention(q, k, v, table, lens, starts, window=20)
    table = batch([(2, 100)])[3]
    table[0, :4] = -1
    assert torch.equal(out, paged_attention(q, k, v, table, lens, starts, window=20))


@pytest.mark.parametrize(("splits", "kv_heads"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_only_out_is_written(splits, kv_heads, use_config):
    use_config(NUM_SPLITS=splits, KV_HEADS=kv_heads)
    tensors = batch(MIXED)
    tokens = tensors[0].shape[0]
    around = torch.full((tokens + 2, HEADS + 1, 2, 20), float("nan"))
    out = around[1:-1, :HEADS, 1, 2:18]
    assert paged_attention(*tensors, out=out) is out
    assert torch.equal(out, paged_attention(*tensors))
    out.fill_(float("nan"))
    assert around.isnan().all()


def test_a_query_without_keys_gives_zeros(use_config):
    use_config()
    lengths = [(3, 0), (5, 2)]  # of the five queries, the first three come before all keys
    for flags in ({}, {"sinks": torch.zeros(HEADS)}):
        out = check(batch(lengths), **flags)
        assert (out[:6] == 0).all()
        assert (out[6:] != 0).any()


@pytest.mark.parametrize("lengths", [[], [(0, 5)], [(0, 0), (0, 0)]], ids=str)
def test_nothing_to_do(lengths):
    assert paged_attention(*batch(lengths)).shape == (0, HEADS, 16)


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_tensors_may_have_any_strides(integers, use_config):
    use_config()
    tensors = batch(MIXED)
    want = paged_attention(*tensors)
    q, k, v, table, lens, starts = tensors
    # Keys and values of a page side by side, heads outside of slots.
    both = torch.cat([k, v], 3).transpose(1, 2).contiguous().transpose(1, 2)
    table, lens, starts = (
        torch.stack([t, torch.full_like(t, -9)], -1).to(integers)[..., 0]
        for t in (table, lens, starts)
    )
    strided = q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert torch.equal(
        paged_attention(strided, both[..., :16], both[..., 16:], table, lens, starts), want
    )


def test_offsets_beyond_32_bits(use_config):
    use_config()
    q, *caches, table, lens, starts = batch(
        [(2, 30)], kv_dtype=torch.int8, heads=2, kv_heads=1, page_size=16
    )
    caches = [cache[table[0, :2].long()] for cache in caches]
    table = torch.tensor([[0, 1]])
    want = paged_attention(q, *caches, table, lens, starts)
    far = []
    for cache in caches:
        # Memory that is never touched takes none.
        room = torch.empty(2**31 + 2 * cache.numel(), dtype=torch.int8)
        moved = room.as_strided(cache.shape, (2**31 + 1, *cache.stride()[1:]))
        far.append(moved.copy_(cache))
    assert torch.equal(paged_attention(q, *far, table, lens, starts), want)


def bad(change: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    tensors: list[torch.Tensor] = batch([(1, 20), (4, 4)])
    flags: dict[str, Any] = {}
    change(tensors, flags)
    return tensors, flags


def put(index: int, make: Any) -> Any:
    """A change of one tensor."""

    def change(tensors: list[torch.Tensor], flags: dict[str, Any]) -> None:
        tensors[index] = make(tensors[index].clone())

    return change


def entry(index: int, place: Any, value: int) -> Any:
    """A change of one number in a tensor."""

    def change(tensors: list[torch.Tensor], flags: dict[str, Any]) -> None:
        tensors[index][place] = value

    return change


def flag(**values: Any) -> Any:
    return lambda tensors, flags: flags.update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(0, lambda q: q[0]), "q has 2 dimensions, allowed: 3"),
        (put(0, lambda q: q.int()), "q is int32, allowed: float32, float16, bfloat16"),
        (put(0, lambda q: q.requires_grad_()), "q requires a gradient"),
        (put(0, lambda q: q[:, :5]), "q has 5 heads and k_cache 2, allowed: a multiple"),
        (put(0, lambda q: q[..., :8]), "q has a head size of 8 and k_cache of 16"),
        (put(1, lambda k: k.half()), "k_cache is float16 and v_cache float32, allowed: both float"),
        (put(1, lambda k: k[:, :8]), r"k_cache is \(5, 8, 2, 16\) and v_cache \(5, 16, 2, 16\)"),
        (put(2, lambda v: v[..., :0]), "v_cache has a head size of 0, allowed: 1 to 256"),
        (put(3, lambda t: t.float()), "block_table is float32, allowed: int32, int64"),
        (put(3, lambda t: t[:1]), "seq_lens has 2 entries, block_table 1 rows and cu_seqlens_q 3"),
        (entry(3, (0, 1), 5), r"block_table\[0, 1\] is page 5, allowed: 0 to 4"),
        (entry(3, (1, 0), -1), r"block_table\[1, 0\] is page -1, allowed: 0 to 4"),
        (entry(4, 0, 49), r"seq_lens\[0\] is 49, allowed: 0 to 48, for which the 3 pages of 16"),
        (entry(4, 1, -1), r"seq_lens\[1\] is -1, allowed: 0 to 48"),
        (entry(5, 2, 6), "cu_seqlens_q goes from 0 to 6, allowed: from 0 to 5"),
        (entry(5, 1, 7), "cu_seqlens_q decreases"),
        (flag(window=0), "window is 0, allowed: 1 and more"),
        (flag(softcap=-1.0), "softcap is -1.0, allowed: more than 0"),
        (flag(scale=float("inf")), "scale is inf, allowed: a finite number"),
        (flag(sinks=torch.ones(2)), "sinks has 2 entries, allowed: one for each of q's 6 heads"),
        (flag(alibi_slopes=torch.ones(6, 1)), "alibi_slopes has 2 dimensions, allowed: 1"),
        (flag(k_scale=torch.ones(3)), r"k_scale is \(3\), allowed: one number, or one for each"),
        (flag(v_scale=1.0), "v_scale is a float, not a tensor"),
        (flag(out=torch.empty(5, 6, 8)), r"out is \(5, 6, 8\), allowed: \(5, 6, 16\)"),
        (flag(out=torch.empty(5, 1, 16).expand(5, 6, 16)), "out cannot be written"),
        (flag(sinks=torch.ones(6, device="meta")), "tensors are on several devices"),
    ],
)
def test_bad_input_is_refused(change, message):
    tensors, flags = bad(change)
    with pytest.raises(ValueError, match=f"paged_attention: .*{message}"):
        paged_attention(*tensors, **flags)


def test_pages_are_of_at_most_256_slots():
    tensors = batch([(1, 20)], page_size=257)
    with pytest.raises(ValueError, match="a page has 257 slots, allowed: 1 to 256"):
        paged_attention(*tensors)


def test_all_reasons_are_given_at_once():
    q, k, *rest = batch([(1, 20)])
    with pytest.raises(ValueError, match=r"window is 0.*; q has a head size of 8"):
        paged_attention(q[..., :8], k, *rest, window=0)


def test_nothing_is_written_when_input_is_refused():
    tensors, _ = bad(entry(4, 0, 1000))
    out = torch.full_like(tensors[0], float("nan"))
    with pytest.raises(ValueError, match="seq_lens"):
        paged_attention(*tensors, out=out)
    assert out.isnan().all()


def test_torch_finds_the_op_well_behaved():
    q, *rest = batch(MIXED)
    none: list[Any] = [None] * 6
    torch.library.opcheck(
        torch.ops.tritune.paged_attention.default,
        (q, *(t.nan_to_num(0.0) for t in rest), torch.empty_like(q), True, 0.25, *none),
    )


def test_compiled_without_a_break_for_any_number_of_tokens():
    compiled = torch.compile(paged_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in (MIXED, [(1, 30), (1, 31), (1, 2)]):
        tensors = batch(lengths)
        assert torch.equal(compiled(*tensors), paged_attention(*tensors))


@pytest.mark.cxx
def test_compiled_by_inductor():
    tensors = batch(MIXED)
    compiled = torch.compile(lambda *args: paged_attention(*args) * 2, fullgraph=True)
    assert torch.equal(compiled(*tensors), paged_attention(*tensors) * 2)


def test_exported():
    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return paged_attention(*tensors, window=9)

    tensors = batch(MIXED)
    program = torch.export.export(Model(), tuple(tensors))
    assert "tritune.paged_attention" in program.graph_module.code
    assert torch.equal(program.module()(*tensors), paged_attention(*tensors, window=9))
