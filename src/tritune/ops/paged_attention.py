"""Attention over a paged KV cache, for batches that prefill, decode or do both."""

from __future__ import annotations

import torch

from tritune.dtypes import FLOATS, INTEGERS, QUANTIZED, QUANTIZED_NAMES, dtype_name
from tritune.errors import ArgumentError
from tritune.kernels.paged_attention import KERNEL, paged_attention_kernel
from tritune.ops.call.attention_checks import (
    check_heads,
    check_options,
    check_per_head,
    wrong_starts,
)
from tritune.ops.call.attention_problems import Options, default_scale, paged_problem
from tritune.ops.call.attention_splits import contiguous, launch_splits
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check, checks_values, given, shape_of
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace
from tritune.targets.device import compile_target

LARGEST_PAGE = 256
#: q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q.
_Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
#: alibi_slopes, sinks, k_scale, v_scale.
_Optional = tuple[
    torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None
]
#: causal, scale, window, softcap.
_Flags = tuple[bool, float, int | None, float | None]
_cache = CallCache()


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
    """Compute attention of packed queries (tokens, heads, head size) to a paged KV cache.

    Args:
        q: The queries of all sequences, one after the other.
        k_cache: Keys, (pages, page size, KV heads, head size). The page size is 1 to 256. The
            dtype is that of `q`, or float8_e4m3fn, float8_e5m2 or int8.
        v_cache: Values, (pages, page size, KV heads, value size).
        block_table: The pages of each sequence, (sequences, most pages of a sequence). Entries past
            a sequence's keys are not read.
        seq_lens: The number of keys of each sequence in the cache, those of its queries included.
        cu_seqlens_q: Offsets of each sequence's queries, and the end of the last one's:
            (sequences + 1,). Sequences may have no queries, or no keys.
        causal: A query sees no key past its own. The last query of a sequence is at its last key.
        scale: The factor of the scores; 1 / sqrt(head size) by default.
        window: The number of latest keys that a query sees, its own included; none past its own.
        softcap: Scores become softcap * tanh(score / softcap).
        alibi_slopes: (heads,); slope * (key's position - query's) is added to each score.
        sinks: (heads,); a score that takes part in the softmax and has no value.
        k_scale: The factor of the cached keys: one number, or one per KV head.
        v_scale: The same for the values.
        out: The tensor for the result; a new one by default.

    Returns:
        (tokens, heads, value size) in the dtype of `q`. A query that sees no key gives zeros.
    """
    tensors = (q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q)
    optional = (alibi_slopes, sinks, k_scale, v_scale)
    target = out
    if out is None and isinstance(q, torch.Tensor) and isinstance(v_cache, torch.Tensor):
        target = q.new_empty((*q.shape[:-1], *v_cache.shape[-1:]))
    if target is not None and q.dim():
        flags = (causal, default_scale(q, None) if scale is None else scale, window, softcap)
        if _cached(tensors, optional, target, flags):
            if out is not None:
                torch.autograd.graph.increment_version(out)
            return target
    with Check("paged_attention") as check:
        check_options(check, scale, window, softcap)
        good = _check_tensors(check, tensors)
        check_per_head(check, q.shape[1] if good else None, alibi_slopes=alibi_slopes, sinks=sinks)
        if good:
            _check_scales(check, k_cache.shape[2], k_scale=k_scale, v_scale=v_scale)
            if out is not None:
                _check_out(check, out, q, v_cache)
            check.same_device(
                q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens,
                cu_seqlens_q=cu_seqlens_q, alibi_slopes=alibi_slopes, sinks=sinks, k_scale=k_scale,
                v_scale=v_scale, out=out,
            )  # fmt: skip
    assert target is not None  # or the checks would have failed
    flags = (causal, default_scale(q, scale), window, softcap)
    _paged_attention(*tensors, target, *flags, *optional)
    return target


def _cached(tensors: _Tensors, optional: _Optional, out: torch.Tensor, flags: _Flags) -> bool:
    """Write the result on a cache hit; return whether it was one."""
    done = _cache(
        (*flags, *[tensor is not None for tensor in optional]),
        *tensors,
        *given(*optional),
        out,
        before=lambda: _check_values(tensors, flags[2]),
    )
    return done is not None


def _check_tensors(check: Check, tensors: _Tensors) -> bool:
    """Check that the tensors fit; return whether more can be checked."""
    q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q = tensors
    good = [
        check.tensor("q", q, 3),
        check.tensor("k_cache", k_cache, 4, FLOATS + QUANTIZED),
        check.tensor("v_cache", v_cache, 4, FLOATS + QUANTIZED),
        check.tensor("block_table", block_table, 2, INTEGERS),
        check.tensor("seq_lens", seq_lens, 1, INTEGERS),
        check.tensor("cu_seqlens_q", cu_seqlens_q, 1, INTEGERS),
    ]
    if not all(good):
        return False
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in (q.dtype, *QUANTIZED):
        check.fail(
            f"k_cache is {dtype_name(k_cache.dtype)} and v_cache {dtype_name(v_cache.dtype)}, "
            f"allowed: both {dtype_name(q.dtype)} as q is, or both one of "
            f"{', '.join(QUANTIZED_NAMES)}"
        )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        check.fail(
            f"k_cache is {shape_of(k_cache)} and v_cache {shape_of(v_cache)}, allowed: as many "
            "pages, slots and heads in both"
        )
    if not 1 <= k_cache.shape[1] <= LARGEST_PAGE:
        check.fail(f"a page has {k_cache.shape[1]} slots, allowed: 1 to {LARGEST_PAGE}")
    check_heads(check, q, k_cache, v_cache, k_cache.shape[2], "_cache")
    sequences = seq_lens.shape[0]
    if block_table.shape[0] != sequences or cu_seqlens_q.shape[0] != sequences + 1:
        check.fail(
            f"seq_lens has {sequences} entries, block_table {block_table.shape[0]} rows and "
            f"cu_seqlens_q {cu_seqlens_q.shape[0]} entries, allowed: one per sequence, one per "
            "sequence, and one more than there are sequences"
        )
    if sequences == 0 and q.shape[0] != 0:
        check.fail(f"q has {q.shape[0]} tokens, allowed: 0, as there are no sequences")
    return True


def _check_scales(check: Check, kv_heads: int, **scales: torch.Tensor | None) -> None:
    for name, scale in scales.items():
        if scale is None or not check.tensor(name, scale):
            continue
        if scale.dim() > 1 or scale.numel() not in (1, kv_heads):
            check.fail(
                f"{name} is {shape_of(scale)}, allowed: one number, or one for each of the "
                f"{kv_heads} KV heads"
            )


def _check_out(check: Check, out: torch.Tensor, q: torch.Tensor, v_cache: torch.Tensor) -> None:
    if not check.tensor("out", out, 3, (q.dtype,)):
        return
    if out.shape[:2] != q.shape[:2] or out.shape[2] != v_cache.shape[3]:
        shape = (*q.shape[:2], v_cache.shape[3])
        check.fail(f"out is {shape_of(out)}, allowed: {shape}, as q and v_cache have it")
    check.writable("out", out)


def _check_values(tensors: _Tensors, window: int | None) -> None:
    if checks_values(tensors[0]):
        with Check("paged_attention") as check:
            check.reasons += _wrong_values(tensors, window)


def _wrong_values(tensors: _Tensors, window: int | None) -> list[str]:
    """Return which lengths and pages are out of range; on a GPU this synchronizes."""
    q, k_cache, _, block_table, seq_lens, cu_seqlens_q = tensors
    (num_pages, page_size), most_pages = k_cache.shape[:2], block_table.shape[1]
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    reasons = wrong_starts("q", starts, q.shape[0])
    room = most_pages * page_size
    if lengths and not (min(lengths) >= 0 and max(lengths) <= room):
        i, length = next((i, n) for i, n in enumerate(lengths) if not 0 <= n <= room)
        reasons.append(
            f"seq_lens[{i}] is {length}, allowed: 0 to {room}, for which the {most_pages} pages of "
            f"{page_size} slots in its row of block_table have room"
        )
    if reasons or block_table.numel() == 0:
        return reasons
    lowest, highest = (int(page) for page in block_table.aminmax())
    if lowest >= 0 and highest < num_pages:
        return reasons
    # Some entry is out of range: that matters only if it is read.
    for i, length in enumerate(lengths):
        queries = starts[i + 1] - starts[i]
        hidden = 0 if window is None else max(length - queries - window + 1, 0)
        for j in range(hidden // page_size, -(-length // page_size)):
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
    tensors = (q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q)
    optional = (alibi_slopes, sinks, k_scale, v_scale)
    flags = (causal, scale, window, softcap)
    if _cached(tensors, optional, out, flags):
        return
    _check_values(tensors, window)
    if out.numel() == 0:
        return
    trace = _launch(tensors, optional, out, flags)
    options = (*flags, *[tensor is not None for tensor in optional])
    _cache.store(options, (*tensors, *given(*optional), out), (), trace)


def _launch(tensors: _Tensors, optional: _Optional, out: torch.Tensor, flags: _Flags) -> Trace:
    q, k_cache, v_cache, block_table, seq_lens, starts = tensors
    slopes, sinks, k_scale, v_scale = optional
    causal, scale, window, softcap = flags
    seq_lens, starts = seq_lens.contiguous(), starts.contiguous()
    slopes, sinks = contiguous(slopes), contiguous(sinks)
    tokens, heads, size = q.shape
    _, page_size, kv_heads, value_size = v_cache.shape
    sequences = seq_lens.shape[0]
    problem, options = paged_problem(
        tokens, sequences, block_table.shape[1], (q.dtype, k_cache.dtype),
        (heads, kv_heads), (size, value_size), page_size,
        Options(causal, window, softcap is not None, slopes is not None, sinks=sinks is not None),
    )  # fmt: skip
    trace = Trace(KERNEL, problem, q.device)
    config = trace.config
    as_bits = k_cache.dtype == torch.float8_e4m3fn and not _converts_e4m3(q.device)
    if as_bits:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    heads_per_program = config.get("KV_HEADS", 1)
    if kv_heads % heads_per_program:
        # A space has no such config, but one can be forced: no program would compute some heads.
        raise ArgumentError(
            f"paged_attention: KV_HEADS is {heads_per_program}, allowed: a divisor of the "
            f"{kv_heads} KV heads"
        )
    blocks = tokens * problem.group // config["BLOCK_M"] + sequences

    def launch(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        trace.launch(
            paged_attention_kernel,
            (blocks, kv_heads // heads_per_program, config["NUM_SPLITS"]),
            (
                q, k_cache, v_cache, out, lse, block_table, seq_lens, starts, slopes, sinks,
                k_scale, v_scale,
            ),
            (
                sequences, tokens * heads, scale, options.window, softcap,
                q.stride(), k_cache.stride(), v_cache.stride(), out.stride(), block_table.stride(),
                (_stride(k_scale), _stride(v_scale)),
            ),
            GROUP=problem.group, SIZE=size, VALUE_SIZE=value_size,
            PAGE_SIZE=page_size, CAUSAL=options.causal, E4M3_BITS=as_bits, **config,
        )  # fmt: skip

    launch_splits(trace, launch, out, None, sinks, starts)
    return trace


def _stride(scale: torch.Tensor | None) -> int:
    """Return the stride from one KV head's scale to the next: 0 where all share one."""
    return 0 if scale is None or scale.numel() == 1 else scale.stride(0)


def _converts_e4m3(device: torch.device) -> bool:
    """Return whether Triton converts e4m3 there: not on NVIDIA's GPUs before sm_89."""
    target = compile_target(device)
    return target.family != "cuda" or int(target.arch) >= 89


_paged_attention = register(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, "
    "Tensor seq_lens, Tensor cu_seqlens_q, Tensor(a!) out, bool causal, float scale, "
    "SymInt? window, float? softcap, Tensor? alibi_slopes, Tensor? sinks, Tensor? k_scale, "
    "Tensor? v_scale) -> ()",
    _run,
)
