"""Attention over whole tensors: batches of equal length, and packed sequences of any lengths."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from tritune.kernels.attention_prefill import KERNEL, AttentionProblem, attention_kernel
from tritune.ops.check import FLOATS, Check, looks_inside
from tritune.ops.choose import config_for
from tritune.ops.library import register

LARGEST_HEAD = 256


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    mask: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of q (B, H, Sq, D) to k (B, Hkv, Skv, D) and v (B, Hkv, Skv, Dv): (B, H, Sq, Dv).

    H is a multiple of Hkv; consecutive query heads share a head of keys. The last query is aligned
    with the last key. Tensors may have any strides.

    causal: a query sees no key that comes after it.
    scale: what scores are multiplied with; 1 / sqrt(D) by default.
    window: a query sees the `window` latest keys, its own included, and none after it.
    softcap: scores become softcap * tanh(score / softcap) before anything is added to them.
    mask: broadcastable to (B, H, Sq, Skv); boolean (True: the key is seen), or added to the scores.
    alibi_slopes: (H,); slope * (key's position - query's position) is added to the scores.
    sinks: (H,); a logit that takes part in the softmax, but has no value.
    return_lse: return (out, lse), lse (B, H, Sq) in fp32 being the natural logarithm of the
        softmax's denominator, a sink included.

    A query that sees no key gets zeros, and a log-sum-exp of -inf (of the sink, if there is one).
    """
    with Check("attention") as check:
        _check_flags(check, window, softcap, alibi_slopes, sinks)
        if _check_tensors(check, q, k, v, rank=4):
            _check_heads(check, q.shape[1], alibi_slopes=alibi_slopes, sinks=sinks)
            if mask is not None:
                _check_mask(check, mask, (*q.shape[:3], k.shape[2]))
            check.same_device(q=q, k=k, v=v, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks)
    arguments = (
        q, k, v, causal, _scale(q, scale), window, softcap, mask, alibi_slopes, sinks
    )  # fmt: skip
    return _attention_lse(*arguments) if return_lse else _attention(*arguments)


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention within packed sequences: q (tokens, H, D), k (tokens, Hkv, D), v (tokens, Hkv, Dv).

    Sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] and the keys and values
    cu_seqlens_k[b] to cu_seqlens_k[b + 1]; either may be empty. max_seqlen_q and max_seqlen_k are
    at least the longest lengths. The result is (tokens, H, Dv), the log-sum-exp (tokens, H);
    everything else is as in `attention`.
    """
    with Check("attention_varlen") as check:
        _check_flags(check, window, softcap, alibi_slopes, sinks)
        starts = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        integers = (torch.int32, torch.int64)
        good = [check.tensor(name, t, rank=1, dtypes=integers) for name, t in starts.items()]
        if _check_tensors(check, q, k, v, rank=3) and all(good):
            _check_heads(check, q.shape[1], alibi_slopes=alibi_slopes, sinks=sinks)
            counts = cu_seqlens_q.shape[0], cu_seqlens_k.shape[0]
            if counts[0] != counts[1] or counts[0] < 1:
                check.that(
                    False,
                    f"cu_seqlens_q has {counts[0]} entries and cu_seqlens_k {counts[1]}, "
                    "allowed: one more than there are sequences, in both",
                )
            check.same_device(q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks, **starts)
    arguments = (
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, _scale(q, scale),
        window, softcap, alibi_slopes, sinks,
    )  # fmt: skip
    return _varlen_lse(*arguments) if return_lse else _varlen(*arguments)


def _scale(q: torch.Tensor, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else float(scale)


# Messages are written only where a check failed: torch's compiler traces these functions, and a
# message that names a dynamic size would pin it.


def _check_tensors(
    check: Check, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: int
) -> bool:
    """That q, k and v belong together, with heads in dimension 1; whether to look any further."""
    good = [check.tensor(name, t, rank=rank) for name, t in (("q", q), ("k", k), ("v", v))]
    if not all(good):
        return False
    if not q.dtype == k.dtype == v.dtype:
        kinds = ", ".join(
            f"{name} is {str(t.dtype).removeprefix('torch.')}"
            for name, t in (("q", q), ("k", k), ("v", v))
        )
        check.that(False, f"{kinds}, allowed: one dtype for all")
    if k.shape[:-1] != v.shape[:-1]:
        check.that(
            False,
            f"k is {tuple(k.shape)} and v {tuple(v.shape)}, allowed: shapes that differ in the "
            "last dimension only",
        )
    heads, kv_heads = q.shape[1], k.shape[1]
    if kv_heads == 0 or heads % kv_heads != 0:
        check.that(False, f"q has {heads} heads and k {kv_heads}, allowed: a multiple of k's")
    if q.shape[-1] != k.shape[-1]:
        check.that(
            False, f"q has a head size of {q.shape[-1]} and k of {k.shape[-1]}, allowed: the same"
        )
    if rank == 4 and q.shape[0] != k.shape[0]:
        check.that(False, f"q has a batch of {q.shape[0]} and k of {k.shape[0]}")
    for name, tensor in (("q", q), ("v", v)):
        if not 1 <= tensor.shape[-1] <= LARGEST_HEAD:
            check.that(
                False,
                f"{name} has a head size of {tensor.shape[-1]}, allowed: 1 to {LARGEST_HEAD}",
            )
    return True


def _check_flags(
    check: Check,
    window: int | None,
    softcap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    if window is not None and window < 1:
        check.that(False, f"window is {window}, allowed: 1 and more, or None")
    if softcap is not None and not softcap > 0:
        check.that(False, f"softcap is {softcap}, allowed: more than 0, or None")
    for name, tensor in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if tensor is not None:
            check.tensor(name, tensor, rank=1)


def _check_heads(check: Check, heads: int, **tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dim() == 1 and tensor.shape[0] != heads:
            check.that(
                False,
                f"{name} has {tensor.shape[0]} entries, allowed: one for each of q's {heads} heads",
            )


def _check_mask(check: Check, mask: torch.Tensor, shape: tuple[int, ...]) -> None:
    if not check.tensor("mask", mask, dtypes=(torch.bool, *FLOATS)):
        return
    if mask.dim() > 4 or any(
        n != 1 and n != m for n, m in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        check.that(False, f"mask is {tuple(mask.shape)}, allowed: what can be broadcast to {shape}")


def _check_starts(name: str, starts: torch.Tensor, tokens: int, longest: int) -> list[str]:
    """Why these cumulative lengths do not describe the tokens; on a GPU this waits for it."""
    values = starts.tolist()
    lengths = [b - a for a, b in itertools.pairwise(values)]
    reasons = []
    if values[0] != 0 or values[-1] != tokens:
        reasons.append(
            f"cu_seqlens_{name} goes from {values[0]} to {values[-1]}, allowed: from 0 to {tokens},"
            " the number of tokens"
        )
    if any(n < 0 for n in lengths):
        reasons.append(f"cu_seqlens_{name} decreases")
    if max(lengths, default=0) > longest:
        reasons.append(
            f"max_seqlen_{name} is {longest}, allowed: at least the longest length, {max(lengths)}"
        )
    return reasons


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: tuple[torch.Tensor, torch.Tensor] | None,
    batch: int,
    queries: int,
    keys: int,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    mask: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Both layouts; `queries` and `keys` are the lengths of each sequence, or of the longest."""
    packed = starts is not None
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if with_lse else None
    if out.numel() == 0:
        return out, lse
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    if window is not None:
        causal = True
        window = window if window < keys else None
    if mask is not None:
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        mask = mask.expand(batch, heads, queries, keys)
    problem = AttentionProblem(
        batch=triton.next_power_of_2(batch),
        heads=heads,
        group=group,
        queries=triton.next_power_of_2(queries),
        keys=triton.next_power_of_2(keys),
        head_size=q.shape[-1],
        value_size=v.shape[-1],
        dtype=str(q.dtype).removeprefix("torch."),
        causal=causal,
        window=triton.next_power_of_2(window or 0),
        softcap=softcap is not None,
        mask="none" if mask is None else "boolean" if mask.dtype == torch.uint8 else "additive",
        alibi=alibi_slopes is not None,
        packed=packed,
    )
    config = config_for(KERNEL, problem, q.device)
    rows, slots = (queries * group, heads // group) if config["PACK_HEADS"] else (queries, heads)
    tiles = triton.cdiv(rows, config["BLOCK_M"])
    q_strides, k_strides, v_strides = (_strides(t, packed) for t in (q, k, v))
    # Offsets within a block of keys fit 32 bits unless a stride is huge.
    reach = 256 * max(sum(k_strides[2:]), sum(v_strides[2:]))
    attention_kernel[(tiles * slots * batch,)](
        q, k, v, out, lse, mask,
        None if alibi_slopes is None else alibi_slopes.contiguous(),
        None if sinks is None else sinks.contiguous(),
        *(starts or (None, None)),
        scale, softcap, window, tiles, heads, group, queries, keys,
        q_strides, k_strides, v_strides, None if mask is None else mask.stride(),
        SIZE=q.shape[-1], VALUE_SIZE=v.shape[-1], CAUSAL=causal,
        OFFSET=tl.int64 if reach >= 2**31 else tl.int32,
        **config,
    )  # fmt: skip
    return out, lse


def _strides(tensor: torch.Tensor, packed: bool) -> tuple[int, ...]:
    """By (batch, head, token, dim); packed tensors are (token, head, dim)."""
    strides = tensor.stride()
    return (0, strides[1], strides[0], strides[2]) if packed else strides


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    mask: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    with_lse: bool = False,
) -> Any:
    out, lse = _launch(
        q, k, v, None, q.shape[0], q.shape[2], k.shape[2], causal, scale, window, softcap, mask,
        alibi_slopes, sinks, with_lse,
    )  # fmt: skip
    return (out, lse) if with_lse else out


def _run_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    with_lse: bool = False,
) -> Any:
    if looks_inside(q):
        with Check("attention_varlen") as check:
            check.reasons += _check_starts("q", cu_seqlens_q, q.shape[0], max_seqlen_q)
            check.reasons += _check_starts("k", cu_seqlens_k, k.shape[0], max_seqlen_k)
    out, lse = _launch(
        q, k, v, (cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()),
        cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_k, causal, scale, window, softcap, None,
        alibi_slopes, sinks, with_lse,
    )  # fmt: skip
    return (out, lse) if with_lse else out


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def _fake_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(q, k, v), q.new_empty(q.shape[:-1], dtype=torch.float32)


_FLAGS = (
    "bool causal, float scale, SymInt? window, float? softcap{mask}, "
    "Tensor? alibi_slopes, Tensor? sinks"
)
_STRIDED = "Tensor q, Tensor k, Tensor v, " + _FLAGS.format(mask=", Tensor? mask")
_PACKED = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, " + _FLAGS.format(mask="")
)
_attention = register(f"attention({_STRIDED}) -> Tensor", _run, _fake)
_attention_lse = register(
    f"attention_lse({_STRIDED}) -> (Tensor, Tensor)",
    functools.partial(_run, with_lse=True),
    _fake_lse,
)
_varlen = register(f"attention_varlen({_PACKED}) -> Tensor", _run_varlen, _fake)
_varlen_lse = register(
    f"attention_varlen_lse({_PACKED}) -> (Tensor, Tensor)",
    functools.partial(_run_varlen, with_lse=True),
    _fake_lse,
)
