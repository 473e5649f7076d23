"""Attention over whole tensors: batches of equal length, and packed sequences of any lengths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tritune.dtypes import FLOATS, INTEGERS, dtype_name
from tritune.kernels.attention import KERNEL, attention_kernel
from tritune.kernels.online_softmax import head_parts
from tritune.ops.call import allocation
from tritune.ops.call.attention_checks import (
    LARGEST_HEAD,
    check_heads,
    check_options,
    check_per_head,
    wrong_starts,
)
from tritune.ops.call.attention_problems import (
    LaunchFacts,
    Lengths,
    Options,
    default_scale,
    launch_facts,
)
from tritune.ops.call.attention_splits import contiguous, launch_splits
from tritune.ops.call.autocast import autocast, autocasts
from tritune.ops.call.batching import MakeRule, folded, one_by_one
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check, checks_values, given, shape_of
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace, cdiv

__all__ = ["LARGEST_HEAD", "attention", "attention_varlen"]

_cache = CallCache()


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
    """Compute attention of q (B, H, Sq, D) to k (B, Hkv, Skv, D) and v (B, Hkv, Skv, Dv).

    The result is (B, H, Sq, Dv). H is a multiple of Hkv; consecutive query heads share a KV head.
    The last query is aligned with the last key. Tensors may have any strides.

    causal: a query sees no key that comes after it.
    scale: the factor of the scores; 1 / sqrt(D) by default.
    window: a query sees the `window` latest keys, its own included, and none after it.
    softcap: scores become softcap * tanh(score / softcap) before anything is added to them.
    mask: broadcastable to (B, H, Sq, Skv); boolean (True: the key is seen), or added to the scores.
    alibi_slopes: (H,); slope * (key's position - query's position) is added to the scores.
    sinks: (H,); a logit that takes part in the softmax, but has no value.
    return_lse: return (out, lse), lse (B, H, Sq) in fp32 being the natural logarithm of the
        softmax's denominator, a sink included.

    A query that sees no key gets zeros, and a log-sum-exp of -inf (of the sink, if there is one).
    Autocast decides the dtype as it does for torch.
    """
    if isinstance(q, torch.Tensor) and q.dim():
        inputs = given(q, k, v, mask, alibi_slopes, sinks)
        flags = (causal, scale if scale is not None else default_scale(q, None), window, softcap)
        outs = _cache((*flags, return_lse, *_present(mask, alibi_slopes, sinks)), *inputs)
        if outs is not None:
            return outs if return_lse else outs[0]
    if autocasts(q):
        q, k, v = autocast(q), autocast(k), autocast(v)
    with Check("attention") as check:
        check_options(check, scale, window, softcap)
        good = _check_tensors(check, q, k, v, rank=4)
        check_per_head(check, q.shape[1] if good else None, alibi_slopes=alibi_slopes, sinks=sinks)
        if good:
            if mask is not None:
                _check_mask(check, mask, (*q.shape[:3], k.shape[2]))
            check.same_device(q=q, k=k, v=v, mask=mask, alibi_slopes=alibi_slopes, sinks=sinks)
    call = _attention_lse if return_lse else _attention
    return call(
        q, k, v, causal, default_scale(q, scale), window, softcap, mask, alibi_slopes, sinks
    )  # fmt: skip


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
    """Compute attention in packed sequences.

    q is (tokens, H, D), k (tokens, Hkv, D) and v (tokens, Hkv, Dv).
    Sequence b has the queries cu_seqlens_q[b] to cu_seqlens_q[b + 1] and the keys and values
    cu_seqlens_k[b] to cu_seqlens_k[b + 1]; either may be empty. max_seqlen_q and max_seqlen_k are
    at least the longest lengths. The result is (tokens, H, Dv), the log-sum-exp (tokens, H);
    everything else is as in `attention`.
    """
    if autocasts(q):
        q, k, v = autocast(q), autocast(k), autocast(v)
    with Check("attention_varlen") as check:
        check_options(check, scale, window, softcap)
        good = _check_tensors(check, q, k, v, rank=3)
        check_per_head(check, q.shape[1] if good else None, alibi_slopes=alibi_slopes, sinks=sinks)
        if _check_starts(check, cu_seqlens_q, cu_seqlens_k) and good:
            check.same_device(
                q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks,
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            )  # fmt: skip
    call = _varlen_lse if return_lse else _varlen
    return call(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal,
        default_scale(q, scale), window, softcap, alibi_slopes, sinks,
    )  # fmt: skip


def _present(*tensors: torch.Tensor | None) -> list[bool]:
    """Return which of the optional tensors are given."""
    return [tensor is not None for tensor in tensors]


def _check_tensors(
    check: Check, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: int
) -> bool:
    """Check that q, k and v fit, with heads in dimension 1; return whether more can be checked."""
    named = (("q", q), ("k", k), ("v", v))
    good = [check.tensor(name, t, rank=rank) for name, t in named]
    if not all(good):
        return False
    if not q.dtype == k.dtype == v.dtype:
        kinds = ", ".join(f"{name} is {dtype_name(t.dtype)}" for name, t in named)
        check.fail(f"{kinds}, allowed: one dtype for all")
    if k.shape[:-1] != v.shape[:-1]:
        check.fail(
            f"k is {shape_of(k)} and v {shape_of(v)}, allowed: shapes that differ in the last "
            "dimension only"
        )
    check_heads(check, q, k, v, k.shape[1])
    if rank == 4 and q.shape[0] != k.shape[0]:
        check.fail(f"q has a batch of {q.shape[0]} and k of {k.shape[0]}, allowed: the same")
    return True


def _check_starts(check: Check, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor) -> bool:
    starts = (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k))
    good = [check.tensor(name, t, rank=1, dtypes=INTEGERS) for name, t in starts]
    if not all(good):
        return False
    counts = cu_seqlens_q.shape[0], cu_seqlens_k.shape[0]
    if counts[0] != counts[1] or counts[0] < 1:
        check.fail(
            f"cu_seqlens_q has {counts[0]} entries and cu_seqlens_k {counts[1]}, "
            "allowed: one more than there are sequences, in both"
        )
    return True


def _check_mask(check: Check, mask: torch.Tensor, shape: tuple[int, ...]) -> None:
    if not check.tensor("mask", mask, dtypes=(torch.bool, *FLOATS)):
        return
    if mask.dim() > 4 or any(
        n != 1 and n != m for n, m in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        check.fail(f"mask is {shape_of(mask)}, allowed: what can be broadcast to {shape}")


class _Inputs(NamedTuple):
    """The tensors of a call; absent ones are None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    starts: tuple[torch.Tensor, torch.Tensor] | None


def _launch(
    inputs: _Inputs,
    lengths: Lengths,
    causal: bool,
    scale: float,
    window: int | None,
    softcap: float | None,
    with_lse: bool,
) -> tuple[tuple[torch.Tensor, ...], Trace | None]:
    """Launch for either layout; return the result, with or without the log-sum-exp."""
    q, k, v, mask, slopes, sinks, starts = inputs
    out = allocation.empty((*q.shape[:-1], v.shape[-1]), like=q)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if with_lse else None
    outs = (out,) if lse is None else (out, lse)
    if out.numel() == 0:
        return outs, None
    kind = "none" if mask is None else "boolean" if mask.dtype == torch.uint8 else "additive"
    facts = launch_facts(
        lengths, starts is not None, q.dtype, (q.shape[1], k.shape[1]),
        (q.shape[-1], v.shape[-1]), (q.stride(), k.stride(), v.stride()),
        Options(causal, window, softcap is not None, slopes is not None, kind),
    )  # fmt: skip
    trace = Trace(KERNEL, facts.problem, q.device)

    def launch(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        _launch_kernel(trace, inputs, lengths, facts, scale, softcap, out, lse)

    launch_splits(trace, launch, out, lse, sinks, None if starts is None else starts[0])
    return outs, trace


def _launch_kernel(
    trace: Trace,
    inputs: _Inputs,
    lengths: Lengths,
    facts: LaunchFacts,
    scale: float,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    q, k, v, mask, slopes, sinks, starts = inputs
    problem, (batch, queries, keys) = facts.problem, lengths
    config = trace.config
    group = problem.group if config["PACK_HEADS"] else 1
    tiles = cdiv(queries * group, config["BLOCK_M"])
    sources: Any = (k, v)
    if config.get("USE_DESCRIPTORS"):
        if facts.describable and not (k.data_ptr() | v.data_ptr()) % 16:
            sources = [_descriptors(t, config) for t in (k, v)]
        else:
            config = {**config, "USE_DESCRIPTORS": False}
    trace.launch(
        attention_kernel,
        (tiles * problem.heads // group * batch, config["NUM_SPLITS"]),
        (q, *sources, out, lse, mask, slopes, sinks, *(starts or (None, None))),
        (
            scale, softcap, facts.options.window,
            tiles, problem.heads, problem.group, queries, keys, q.numel() // problem.head_size,
            facts.q, facts.k, facts.v, None if mask is None else mask.stride(),
        ),
        SIZE=problem.head_size, VALUE_SIZE=problem.value_size, CAUSAL=problem.causal,
        OFFSET=facts.offset, **config,
    )  # fmt: skip


def _descriptors(tensor: torch.Tensor, config: Mapping[str, Any]) -> tuple[TensorDescriptor, ...]:
    """Describe blocks of tokens of a (batch, head, token, dim) tensor, for each part of a head."""
    by_batch = tensor if tensor.dim() == 4 else tensor.transpose(0, 1)[None]
    shape, strides, tokens = list(by_batch.shape), list(by_batch.stride()), config["BLOCK_N"]
    return tuple(
        TensorDescriptor(by_batch, shape, strides, [1, 1, tokens, width])
        for _, width in head_parts(tensor.shape[-1], config["SPLIT_HEAD"])
    )


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
    tensors = given(q, k, v, mask, alibi_slopes, sinks)
    options = (causal, scale, window, softcap, with_lse, *_present(mask, alibi_slopes, sinks))
    outs = _cache(options, *tensors)
    if outs is None:
        lengths = Lengths(q.shape[0], q.shape[2], k.shape[2])
        if mask is not None:
            mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
            mask = mask.expand(lengths.batch, q.shape[1], lengths.queries, lengths.keys)
        inputs = _Inputs(q, k, v, mask, contiguous(alibi_slopes), contiguous(sinks), None)
        outs, trace = _launch(inputs, lengths, causal, scale, window, softcap, with_lse)
        _cache.store(options, tensors, outs, trace)
    return outs if with_lse else outs[0]


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
    if checks_values(q):
        with Check("attention_varlen") as check:
            check.reasons += wrong_starts("q", cu_seqlens_q.tolist(), q.shape[0], max_seqlen_q)
            check.reasons += wrong_starts("k", cu_seqlens_k.tolist(), k.shape[0], max_seqlen_k)
    starts = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
    inputs = _Inputs(q, k, v, None, contiguous(alibi_slopes), contiguous(sinks), starts)
    lengths = Lengths(cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_k)
    outs, _ = _launch(inputs, lengths, causal, scale, window, softcap, with_lse)
    return outs if with_lse else outs[0]


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> torch.Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def _fake_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> Any:
    return _fake(q, k, v), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _register(
    name: str, extra: str, run: Callable[..., Any], vmap: MakeRule
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Register an op and the same with the log-sum-exp."""
    arguments = f"(Tensor q, Tensor k, Tensor v, {extra}, Tensor? alibi_slopes, Tensor? sinks)"
    run_lse = functools.partial(run, with_lse=True)
    return (
        register(f"{name}{arguments} -> Tensor", run, _fake, vmap),
        register(f"{name}_lse{arguments} -> (Tensor, Tensor)", run_lse, _fake_lse, vmap),
    )


_FLAGS = "bool causal, float scale, SymInt? window, float? softcap"
# The mask is the eighth argument.
_attention, _attention_lse = _register(
    "attention", f"{_FLAGS}, Tensor? mask", _run, folded(arguments=3, mask=7)
)
_STARTS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_varlen, _varlen_lse = _register(
    "attention_varlen", f"{_STARTS}, {_FLAGS}", _run_varlen, one_by_one
)
