"""Attention over a paged KV cache, for batches that prefill, decode or do both."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import triton

from tritune.kernels.attention_paged import (
    KERNEL,
    PagedAttentionProblem,
    merge_splits_kernel,
    paged_attention_kernel,
)
from tritune.ops.check import FLOATS, Check, looks_inside
from tritune.ops.choose import config_for, device_target
from tritune.ops.library import register
from tritune.ops.shapes import described, writable

QUANTIZED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
INTEGERS = (torch.int32, torch.int64)
LARGEST_HEAD = 256
LARGEST_PAGE = 256
#: Rows, each a token and a head, that a program of the merging kernel takes.
_MERGED_ROWS = 4


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of packed queries (tokens, heads, head size) to keys and values in pages.

    Args:
        q: The queries of all sequences, one after the other.
        k_cache: Keys, (pages, page size, KV heads, head size). The page size is 1 to 256. The
            dtype is that of `q`, or float8_e4m3fn, float8_e5m2 or int8.
        v_cache: Values, (pages, page size, KV heads, value size).
        block_table: The pages of each sequence, (sequences, most pages of a sequence). Entries past
            a sequence's keys are not looked at.
        seq_lens: How many keys each sequence has in the cache, those of its queries included.
        cu_seqlens_q: Where each sequence's queries begin, and where the last one's end:
            (sequences + 1,). Sequences without queries or without keys are fine.
        causal: A query sees no key past its own. The last query of a sequence is at its last key.
        scale: What scores are multiplied with; 1 / sqrt(head size) unless given.
        window: How many of the latest keys a query sees, its own included; none past its own.
        softcap: Scores become softcap * tanh(score / softcap).
        alibi_slopes: (heads,); slope * (key's position - query's) is added to each score.
        sinks: (heads,); a score that takes part in the softmax and has no value.
        k_scale: What the cached keys are to be multiplied with: one number, or one per KV head.
        v_scale: The same for the values.
        out: Where to put the result; otherwise it is a new tensor.

    Returns:
        (tokens, heads, value size) in the dtype of `q`. A query that sees no key gives zeros.
    """
    with Check("paged_attention") as check:
        good = [
            check.tensor("q", q, 3),
            check.tensor("k_cache", k_cache, 4, FLOATS + QUANTIZED),
            check.tensor("v_cache", v_cache, 4, FLOATS + QUANTIZED),
            check.tensor("block_table", block_table, 2, INTEGERS),
            check.tensor("seq_lens", seq_lens, 1, INTEGERS),
            check.tensor("cu_seqlens_q", cu_seqlens_q, 1, INTEGERS),
        ]
        if all(good):
            check.reasons += _wrong_shapes(q, k_cache, v_cache)
            check.reasons += _wrong_batch(q, block_table, seq_lens, cu_seqlens_q)
            _check_per_head(check, q.shape[1], alibi_slopes=alibi_slopes, sinks=sinks)
            _check_scales(check, k_cache.shape[2], k_scale=k_scale, v_scale=v_scale)
            if out is not None:
                _check_out(check, out, q, v_cache)
        check.that(
            window is None or window >= 1, f"window is {window}, allowed: 1 and more, or None"
        )
        check.that(
            softcap is None or 0 < softcap < math.inf,
            f"softcap is {softcap}, allowed: more than 0, or None",
        )
        check.that(
            scale is None or math.isfinite(scale), f"scale is {scale}, allowed: a finite number"
        )
        if not check.reasons:
            check.same_device(
                q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens,
                cu_seqlens_q=cu_seqlens_q, alibi_slopes=alibi_slopes, sinks=sinks, k_scale=k_scale,
                v_scale=v_scale, out=out,
            )  # fmt: skip
    if out is None:
        out = q.new_empty(q.shape[0], q.shape[1], v_cache.shape[3])
    _paged_attention(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, out, causal,
        float(q.shape[2]) ** -0.5 if scale is None else float(scale),
        window, softcap, alibi_slopes, sinks, k_scale, v_scale,
    )  # fmt: skip
    return out


# Reasons are put into words only where there are some: torch's compiler traces these checks, and a
# message that names a dynamic size would pin it.


def _wrong_shapes(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> list[str]:
    reasons = []
    _, heads, size = q.shape
    _, page_size, kv_heads, key_size = k_cache.shape
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in (q.dtype, *QUANTIZED):
        reasons.append(
            f"k_cache is {_name(k_cache.dtype)} and v_cache {_name(v_cache.dtype)}, allowed: both "
            f"{_name(q.dtype)} as q is, or both one of {', '.join(map(_name, QUANTIZED))}"
        )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        reasons.append(
            f"k_cache is {described(k_cache)} and v_cache {described(v_cache)}, allowed: as many "
            "pages, slots and heads in both"
        )
    if key_size != size:
        reasons.append(f"q has a head size of {size} and k_cache of {key_size}, allowed: the same")
    if kv_heads == 0 or heads % kv_heads != 0:
        reasons.append(
            f"q has {heads} heads and k_cache {kv_heads}, allowed: a multiple of k_cache's"
        )
    for name, tensor in (("q", q), ("v_cache", v_cache)):
        if not 1 <= tensor.shape[-1] <= LARGEST_HEAD:
            reasons.append(
                f"{name} has a head size of {tensor.shape[-1]}, allowed: 1 to {LARGEST_HEAD}"
            )
    if not 1 <= page_size <= LARGEST_PAGE:
        reasons.append(f"a page has {page_size} slots, allowed: 1 to {LARGEST_PAGE}")
    return reasons


def _wrong_batch(
    q: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor
) -> list[str]:
    sequences = seq_lens.shape[0]
    reasons = []
    if block_table.shape[0] != sequences or cu_seqlens_q.shape[0] != sequences + 1:
        reasons.append(
            f"seq_lens has {sequences} entries, block_table {block_table.shape[0]} rows and "
            f"cu_seqlens_q {cu_seqlens_q.shape[0]} entries, allowed: one per sequence, one per "
            "sequence, and one more than there are sequences"
        )
    if sequences == 0 and q.shape[0] != 0:
        reasons.append(f"q has {q.shape[0]} tokens, allowed: 0, as there are no sequences")
    return reasons


def _check_per_head(check: Check, heads: int, **tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and check.tensor(name, tensor, 1) and tensor.shape[0] != heads:
            check.that(
                False,
                f"{name} has {tensor.shape[0]} entries, allowed: one for each of q's {heads} heads",
            )


def _check_scales(check: Check, kv_heads: int, **scales: torch.Tensor | None) -> None:
    for name, scale in scales.items():
        if scale is None or not check.tensor(name, scale):
            continue
        if scale.dim() > 1 or scale.numel() not in (1, kv_heads):
            check.that(
                False,
                f"{name} is {described(scale)}, allowed: one number, or one for each of the "
                f"{kv_heads} KV heads",
            )


def _check_out(check: Check, out: torch.Tensor, q: torch.Tensor, v_cache: torch.Tensor) -> None:
    if not check.tensor("out", out, 3, (q.dtype,)):
        return
    if out.shape[:2] != q.shape[:2] or out.shape[2] != v_cache.shape[3]:
        shape = (*q.shape[:2], v_cache.shape[3])
        check.that(False, f"out is {described(out)}, allowed: {shape}, as q and v_cache have it")
    writable(check, "out", out)


def _wrong_values(
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    tokens: int,
    window: int | None,
) -> list[str]:
    """Why the lengths and pages lie outside of what they count; on a GPU this waits for it."""
    reasons = []
    (num_pages, page_size), most_pages = k_cache.shape[:2], block_table.shape[1]
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    if starts[0] != 0 or starts[-1] != tokens:
        reasons.append(
            f"cu_seqlens_q goes from {starts[0]} to {starts[-1]}, allowed: from 0 to {tokens}, the "
            "number of tokens"
        )
    if any(b < a for a, b in itertools.pairwise(starts)):
        reasons.append("cu_seqlens_q decreases")
    for i, length in enumerate(lengths):
        if not 0 <= length <= most_pages * page_size:
            reasons.append(
                f"seq_lens[{i}] is {length}, allowed: 0 to {most_pages * page_size}, for which the "
                f"{most_pages} pages of {page_size} slots in its row of block_table have room"
            )
            break
    if reasons or block_table.numel() == 0:
        return reasons
    lowest, highest = (int(page) for page in block_table.aminmax())
    if lowest >= 0 and highest < num_pages:
        return reasons
    # Some entry points outside: that matters only if it is one of those that are read.
    for i, length in enumerate(lengths):
        queries = starts[i + 1] - starts[i]
        hidden = 0 if window is None else max(length - queries - window + 1, 0)
        for j in range(hidden // page_size, triton.cdiv(length, page_size)):
            page = int(block_table[i, j])
            if not 0 <= page < num_pages:
                return [f"block_table[{i}, {j}] is page {page}, allowed: 0 to {num_pages - 1}"]
    return reasons


def _run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    out: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    tokens, heads, size = q.shape
    _, page_size, kv_heads, value_size = v_cache.shape
    sequences, group = seq_lens.shape[0], heads // kv_heads
    if looks_inside(q):
        with Check("paged_attention") as check:
            check.reasons += _wrong_values(
                k_cache, block_table, seq_lens, cu_seqlens_q, tokens, window
            )
    if out.numel() == 0:
        return
    keys, queries = block_table.shape[1] * page_size, triton.cdiv(tokens, sequences)
    if window is not None:
        causal = True
        # A query sees at most as many keys as there are.
        window = window if window < keys else None
    problem = PagedAttentionProblem(
        dtype=_name(q.dtype),
        kv_dtype=_name(k_cache.dtype),
        head_size=size,
        value_size=value_size,
        kv_heads=kv_heads,
        group=group,
        page_size=page_size,
        queries=triton.next_power_of_2(queries),
        sequences=triton.next_power_of_2(sequences),
        keys=triton.next_power_of_2(
            max(keys if window is None else min(keys, window + queries), 1)
        ),
        causal=causal,
        window=window is not None,
        softcap=softcap is not None,
        alibi=alibi_slopes is not None,
        sinks=sinks is not None,
    )
    config = config_for(KERNEL, problem, q.device)

    as_bits = k_cache.dtype == torch.float8_e4m3fn and not _converts_e4m3(q.device)
    if as_bits:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    # The result is written at once, or for each split on its own and then merged.
    splits = config["NUM_SPLITS"]
    partial, lse = out[None], None
    if splits > 1:
        partial = q.new_empty(splits, tokens, heads, value_size, dtype=torch.float32)
        lse = q.new_empty(splits, tokens, heads, dtype=torch.float32)
    starts, sinks = cu_seqlens_q.contiguous(), _packed(sinks)
    blocks = tokens * group // config["BLOCK_M"] + sequences
    block_dv = max(16, triton.next_power_of_2(value_size))
    paged_attention_kernel[(blocks, kv_heads, splits)](
        q, k_cache, v_cache, partial, lse, block_table, seq_lens.contiguous(), starts,
        _packed(alibi_slopes), sinks, k_scale, v_scale, sequences, scale, window, softcap,
        q.stride(), k_cache.stride(), v_cache.stride(), partial.stride(), tokens * heads,
        block_table.stride(), (_step(k_scale), _step(v_scale)),
        GROUP=group, SIZE=size, VALUE_SIZE=value_size, PAGE_SIZE=page_size,
        BLOCK_D=max(16, triton.next_power_of_2(size)), BLOCK_DV=block_dv,
        CAUSAL=causal, E4M3_BITS=as_bits, **config,
    )  # fmt: skip
    if lse is not None:
        rows = tokens * heads
        merge_splits_kernel[(triton.cdiv(rows, _MERGED_ROWS),)](
            partial, lse, sinks, out, starts, sequences, rows, heads, out.stride(),
            VALUE_SIZE=value_size, NUM_SPLITS=splits, ROWS=_MERGED_ROWS, BLOCK_DV=block_dv,
        )  # fmt: skip


def _packed(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _step(scale: torch.Tensor | None) -> int:
    """From one KV head's scale to the next: 0 where all share one."""
    return 0 if scale is None or scale.numel() == 1 else scale.stride(0)


def _converts_e4m3(device: torch.device) -> bool:
    """Whether Triton has this type there: NVIDIA's GPUs before compute capability 8.9 do not."""
    family, arch = device_target(device)
    return family != "cuda" or int(arch) >= 89


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fake(*args: Any) -> None:
    return None


_paged_attention = register(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, "
    "Tensor seq_lens, Tensor cu_seqlens_q, Tensor(a!) out, bool causal, float scale, "
    "SymInt? window, float? softcap, Tensor? alibi_slopes, Tensor? sinks, Tensor? k_scale, "
    "Tensor? v_scale) -> ()",
    _run,
    _fake,
)
