"""Attention over a paged KV cache, for batches that prefill, decode or do both."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tritune.dtypes import FLOATS, INTEGERS, QUANTIZED, QUANTIZED_NAMES, dtype_name
from tritune.kernels.paged_attention import (
    KERNEL,
    PagedAttentionProblem,
    paged_attention_kernel,
)
from tritune.ops.call.attention_checks import (
    check_heads,
    check_options,
    check_per_head,
    wrong_starts,
)
from tritune.ops.call.attention_plan import Options, plan_paged
from tritune.ops.call.attention_splits import merge_splits, packed, split_results
from tritune.ops.call.call_cache import Repeats
from tritune.ops.call.checks import Check, looks_inside
from tritune.ops.call.launch import Steps
from tritune.ops.call.library import register
from tritune.ops.call.shapes import described, given, writable
from tritune.policy import config_for
from tritune.targets.device import compile_target

LARGEST_PAGE = 256
_calls = Repeats()


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
    optional = (alibi_slopes, sinks, k_scale, v_scale)
    target = out
    if out is None and isinstance(q, torch.Tensor) and isinstance(v_cache, torch.Tensor):
        target = q.new_empty((*q.shape[:-1], *v_cache.shape[-1:]))
    if target is not None and q.dim():
        flags = (causal, _scale(q, None) if scale is None else scale, window, softcap)
        tensors = (q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q)
        if _again(tensors, optional, target, flags):
            if out is not None:
                torch.autograd.graph.increment_version(out)
            return target
    with Check("paged_attention") as check:
        check_options(check, scale, window, softcap)
        good = _check_tensors(check, q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q)
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
    assert target is not None  # or the checks would not have let it pass
    _paged_attention(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, target, causal,
        _scale(q, scale), window, softcap, *optional,
    )  # fmt: skip
    return target


def _again(
    tensors: tuple[torch.Tensor, ...],
    optional: tuple[torch.Tensor | None, ...],
    out: torch.Tensor,
    flags: tuple[Any, ...],
) -> bool:
    """Write the result, if there was a call like this one; whether there was."""
    q, k_cache, _, block_table, seq_lens, cu_seqlens_q = tensors
    done = _calls(
        (*flags, *[tensor is not None for tensor in optional]),
        *tensors,
        *given(*optional),
        out,
        before=lambda: _check_values(q, k_cache, block_table, seq_lens, cu_seqlens_q, flags[2]),
    )
    return done is not None


def _scale(q: torch.Tensor, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else float(scale)


def _check_tensors(
    check: Check,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
) -> bool:
    """That the tensors belong together; whether to look any further."""
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
    _check_caches(check, q, k_cache, v_cache)
    check_heads(check, q, k_cache, v_cache, k_cache.shape[2], "_cache")
    sequences = seq_lens.shape[0]
    if block_table.shape[0] != sequences or cu_seqlens_q.shape[0] != sequences + 1:
        check.that(
            False,
            f"seq_lens has {sequences} entries, block_table {block_table.shape[0]} rows and "
            f"cu_seqlens_q {cu_seqlens_q.shape[0]} entries, allowed: one per sequence, one per "
            "sequence, and one more than there are sequences",
        )
    if sequences == 0 and q.shape[0] != 0:
        check.that(False, f"q has {q.shape[0]} tokens, allowed: 0, as there are no sequences")
    return True


def _check_caches(
    check: Check, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in (q.dtype, *QUANTIZED):
        kinds = ", ".join(QUANTIZED_NAMES)
        check.that(
            False,
            f"k_cache is {dtype_name(k_cache.dtype)} and v_cache {dtype_name(v_cache.dtype)}, "
            f"allowed: both {dtype_name(q.dtype)} as q is, or both one of {kinds}",
        )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        check.that(
            False,
            f"k_cache is {described(k_cache)} and v_cache {described(v_cache)}, allowed: as many "
            "pages, slots and heads in both",
        )
    if not 1 <= k_cache.shape[1] <= LARGEST_PAGE:
        check.that(False, f"a page has {k_cache.shape[1]} slots, allowed: 1 to {LARGEST_PAGE}")


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


def _check_values(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    window: int | None,
) -> None:
    if looks_inside(q):
        with Check("paged_attention") as check:
            check.reasons += _wrong_values(
                k_cache, block_table, seq_lens, cu_seqlens_q, q.shape[0], window
            )


def _wrong_values(
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    tokens: int,
    window: int | None,
) -> list[str]:
    """Why the lengths and pages lie outside of what they count; on a GPU this waits for it."""
    (num_pages, page_size), most_pages = k_cache.shape[:2], block_table.shape[1]
    starts, lengths = cu_seqlens_q.tolist(), seq_lens.tolist()
    reasons = wrong_starts("q", starts, tokens)
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
    # Some entry points outside: that matters only if it is one of those that are read.
    for i, length in enumerate(lengths):
        queries = starts[i + 1] - starts[i]
        hidden = 0 if window is None else max(length - queries - window + 1, 0)
        for j in range(hidden // page_size, -(-length // page_size)):
            page = int(block_table[i, j])
            if not 0 <= page < num_pages:
                return [f"block_table[{i}, {j}] is page {page}, allowed: 0 to {num_pages - 1}"]
    return reasons


class _Inputs(NamedTuple):
    """The tensors of a call; what is absent is None."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    starts: torch.Tensor
    slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None


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
    if _again(tensors, optional, out, flags):
        return
    tokens, heads, size = q.shape
    _, page_size, kv_heads, value_size = v_cache.shape
    _check_values(q, k_cache, block_table, seq_lens, cu_seqlens_q, window)
    if out.numel() == 0:
        return
    problem, options = plan_paged(
        tokens, seq_lens.shape[0], block_table.shape[1], (q.dtype, k_cache.dtype),
        (heads, kv_heads), (size, value_size), page_size,
        Options(
            causal, window, softcap is not None, alibi_slopes is not None, sinks=sinks is not None
        ),
    )  # fmt: skip
    question = (KERNEL, problem, q.device)
    steps = Steps(question, config_for(*question))
    inputs = _Inputs(
        q, k_cache, v_cache, block_table, seq_lens.contiguous(), cu_seqlens_q.contiguous(),
        packed(alibi_slopes), packed(sinks), k_scale, v_scale,
    )  # fmt: skip
    splits = steps.config["NUM_SPLITS"]
    if splits == 1:
        _launch(steps, inputs, problem, options, scale, softcap, out, None)
    else:
        results = split_results(steps, splits, tokens * heads, value_size)
        _launch(steps, inputs, problem, options, scale, softcap, *results)
        merge_splits(steps, results, out, None, inputs.sinks, inputs.starts)
    known = (*flags, *[tensor is not None for tensor in optional])
    _calls.keep(known, (*tensors, *given(*optional), out), (), steps)


def _launch(
    steps: Steps,
    inputs: _Inputs,
    problem: PagedAttentionProblem,
    options: Options,
    scale: float,
    softcap: float | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    q, k_cache, v_cache, block_table, seq_lens, starts, slopes, sinks, k_scale, v_scale = inputs
    as_bits = k_cache.dtype == torch.float8_e4m3fn and not _converts_e4m3(q.device)
    if as_bits:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    tokens, sequences = q.shape[0], seq_lens.shape[0]
    config = steps.config
    blocks = tokens * problem.group // config["BLOCK_M"] + sequences
    at_once = config.get("KV_HEADS", 1)
    if problem.kv_heads % at_once:
        # A space has no such config, but one can be forced: some heads would be nobody's.
        raise ValueError(
            f"paged_attention: KV_HEADS is {at_once}, allowed: a divisor of the "
            f"{problem.kv_heads} KV heads"
        )
    steps.launch(
        paged_attention_kernel,
        (blocks, problem.kv_heads // at_once, config["NUM_SPLITS"]),
        (
            q, k_cache, v_cache, out, lse, block_table, seq_lens, starts, slopes, sinks,
            k_scale, v_scale,
        ),
        (
            sequences, tokens * q.shape[1], scale, options.window, softcap,
            q.stride(), k_cache.stride(), v_cache.stride(), out.stride(), block_table.stride(),
            (_step(k_scale), _step(v_scale)),
        ),
        GROUP=problem.group, SIZE=problem.head_size, VALUE_SIZE=problem.value_size,
        PAGE_SIZE=problem.page_size, CAUSAL=options.causal, E4M3_BITS=as_bits, **config,
    )  # fmt: skip


def _step(scale: torch.Tensor | None) -> int:
    """From one KV head's scale to the next: 0 where all share one."""
    return 0 if scale is None or scale.numel() == 1 else scale.stride(0)


def _converts_e4m3(device: torch.device) -> bool:
    """Whether Triton has this type there: NVIDIA's GPUs before compute capability 8.9 do not."""
    target = compile_target(device)
    return target.family != "cuda" or int(target.arch) >= 89


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
