"""Flash attention, forward: any lengths, causal or not, grouped query heads."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_accurate, dtype_of, normal

LOG2_E = 1.4426950408889634


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, heads, group, queries, keys,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Tensors are (batch * head, length, D); `group` query heads share a head of keys."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // heads * (heads // group) + head % heads // group
    q_ptr += head.to(tl.int64) * queries * D
    k_ptr += kv_head.to(tl.int64) * keys * D
    v_ptr += kv_head.to(tl.int64) * keys * D
    rows = tile * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < queries, other=0.0)
    most = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = keys
    if CAUSAL:
        # The last query sees the last key.
        end = tl.minimum(keys, (tile + 1) * BM + keys - queries)
    for start in range(0, end, BN):
        n = start + cols
        k = tl.load(k_ptr + n[None, :] * D + d[:, None], mask=n[None, :] < keys, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * (scale * 1.4426950408889634)
        visible = n[None, :] < keys
        if CAUSAL:
            visible = visible & (n[None, :] <= rows[:, None] + keys - queries)
        scores = tl.where(visible, scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, axis=1))
        # A row that has seen nothing yet would compute inf - inf.
        safe = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(most - safe)
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptr + n[:, None] * D + d[None, :], mask=n[:, None] < keys, other=0.0)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        most = new
    out = acc / total[:, None]
    place = head.to(tl.int64) * queries * D + rows[:, None] * D + d[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=rows[:, None] < queries)
    lse = (most + tl.log2(total)) * 0.6931471805599453
    tl.store(lse_ptr + head * queries + rows, lse, mask=rows < queries)


def attend(q, k, v, *, causal, tile=(32, 32)):
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    out = torch.full_like(q, float("nan"))
    lse = torch.full((batch, heads, queries), float("nan"))
    bm, bn = tile
    attention[(triton.cdiv(queries, bm), batch * heads)](
        q, k, v, out, lse, dim**-0.5, heads, heads // k.shape[1], queries, keys,
        BM=bm, BN=bn, D=dim, CAUSAL=causal,
    )  # fmt: skip
    return out, lse


def reference(q, k, v, *, causal):
    repeat = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    if causal:
        queries, keys = scores.shape[2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        scores = scores.masked_fill(hidden, -float("inf"))
    return scores.softmax(3) @ v, scores.logsumexp(3)


def tensors(dtype, heads, kv_heads, queries, keys, dim):
    q = normal(dtype, 2, heads, queries, dim)
    return (
        q,
        normal(dtype, 2, kv_heads, keys, dim, seed=1),
        normal(dtype, 2, kv_heads, keys, dim, seed=2),
    )


def check(q, k, v, *, causal, tile=(32, 32)):
    out, lse = attend(q, k, v, causal=causal, tile=tile)
    plain, _ = reference(q, k, v, causal=causal)
    exact, exact_lse = reference(*(t.double() for t in (q, k, v)), causal=causal)
    assert_accurate(out, plain, exact)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_attention_of_uneven_lengths(dtype, causal):
    check(*tensors(dtype_of(dtype), 2, 2, 75, 75, 32), causal=causal)


@pytest.mark.parametrize(("queries", "keys"), [(1, 100), (17, 64), (64, 130)])
def test_fewer_queries_than_keys(queries, keys):
    check(*tensors(torch.float32, 2, 2, queries, keys, 32), causal=True)


def test_query_heads_share_heads_of_keys():
    check(*tensors(torch.float32, 4, 2, 40, 40, 16), causal=True)


@pytest.mark.parametrize("tile", [(64, 128), (16, 16), (128, 32)])
def test_tiles_of_any_size(tile):
    check(*tensors(torch.float32, 1, 1, 150, 150, 64), causal=True, tile=tile)


def test_nan_past_the_keys_changes_not_one_bit():
    q, k, v = tensors(torch.float32, 1, 1, 40, 40, 16)
    # The second batch entry starts where the first ends: give the first alone, followed by NaN.
    clean = attend(q[:1], k[:1], v[:1], causal=False)[0]
    guard = torch.full((1, 1, 40, 16), float("nan"))
    k, v = (torch.cat([t[:1], guard])[:1] for t in (k, v))
    assert torch.equal(attend(q[:1], k, v, causal=False)[0], clean)
