"""Attention over a paged KV cache as a workload: pages in no order, sequences of any length."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import triton

from tritune.dtypes import FLOAT_NAMES, QUANTIZED_NAMES
from tritune.kernels.paged_attention import KERNEL, PagedAttentionProblem
from tritune.kernels.paged_attention import reference as paged_reference
from tritune.ops.paged_attention import LARGEST_PAGE, paged_attention
from tritune.workloads.attention import attention_work, too_large_heads
from tritune.workloads.inputs import Maker, lengths, offsets
from tritune.workloads.libraries.sdpa import packed_sdpa, padded_sdpa
from tritune.workloads.reference.attention import attend_packed, attention_flags, packed_part
from tritune.workloads.reference.compared import Part
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload

#: The standard deviation of the cached numbers, and so the inverse of their scale.
_SPREAD = {"float8_e4m3fn": 1.0, "float8_e5m2": 1.0, "int8": 32.0}


class PagedAttention(Workload):
    name = "paged_attention"
    kernel = KERNEL
    defaults: ClassVar = {
        "dtype": "float16",
        "head_size": 128,
        "kv_heads": 8,
        "group": 4,
        "page_size": 16,
        "queries": 1,
        "sequences": 8,
        "keys": 4096,
        "causal": True,
        "window": False,
        "softcap": False,
        "alibi": False,
        "sinks": False,
    }
    like: ClassVar = {"value_size": "head_size", "kv_dtype": "dtype"}
    assisted = frozenset({"sdpa_gathered", "sdpa_padded_gathered"})
    compilable = frozenset({"sdpa", "sdpa_padded"})
    buckets = ("queries", "sequences", "keys")
    allowed: ClassVar = {
        "kv_dtype": (*FLOAT_NAMES, *QUANTIZED_NAMES),
        "page_size": tuple(range(1, LARGEST_PAGE + 1)),
    }

    def impossible(self, problem: PagedAttentionProblem) -> list[str]:
        reasons = too_large_heads(problem)
        if problem.kv_dtype not in (problem.dtype, *QUANTIZED_NAMES):
            allowed = ", ".join((problem.dtype, *QUANTIZED_NAMES))
            reasons.append(f"kv_dtype is {problem.kv_dtype}, allowed: {allowed}")
        if problem.window and not problem.causal:
            reasons.append("window=true goes with causal=true only")
        keys = triton.next_power_of_2(problem.keys)
        room = keys // problem.page_size * problem.page_size
        if triton.next_power_of_2(room) != keys:
            reasons.append(f"keys is {problem.keys}, allowed: at least a page, {problem.page_size}")
        elif problem.window and keys < 2:
            reasons.append("keys is 1, allowed with a window: 2 and more")
        return reasons

    def make(self, problem: PagedAttentionProblem, maker: Maker) -> Inputs:
        window, room = _window(problem)
        pages = room // problem.page_size
        counts = _lengths(problem)
        q_starts = offsets([queries for queries, _ in counts])
        sequences, kv_heads = problem.sequences, problem.kv_heads
        slots = sequences * pages, problem.page_size, kv_heads
        spread = _SPREAD.get(problem.kv_dtype, 1.0)
        heads = kv_heads * problem.group
        inputs: Inputs = {
            "q": maker.normal(q_starts[-1], heads, problem.head_size, dtype=problem.dtype),
            "k_cache": maker.normal(
                *slots, problem.head_size, dtype=problem.kv_dtype, spread=spread
            ),
            "v_cache": maker.normal(
                *slots, problem.value_size, dtype=problem.kv_dtype, spread=spread
            ),
            "block_table": maker.indices(
                maker.shuffled(sequences * pages).view(sequences, pages), torch.int32
            ),
            "seq_lens": maker.indices([keys for _, keys in counts], torch.int32),
            "cu_seqlens_q": maker.indices(q_starts, torch.int32),
            "causal": problem.causal,
            "window": window,
            **attention_flags(heads, maker.device, problem.softcap, problem.alibi, problem.sinks),
        }
        if problem.kv_dtype != problem.dtype:
            scale = torch.full((), 1.0 / spread, device=maker.device)
            inputs |= {"k_scale": scale, "v_scale": scale.clone()}
        return inputs

    def run(self, inputs: Inputs) -> Outputs:
        return (paged_attention(**inputs),)

    def part(self, inputs: Inputs) -> Part:
        """Select some tokens and some heads."""
        tokens, heads, _ = inputs["q"].shape
        sequences, pages = inputs["block_table"].shape
        keys = pages * inputs["k_cache"].shape[1]
        return packed_part(tokens, sequences, heads, keys, inputs["q"].dtype)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        keys_values = functools.partial(_sequence, inputs, dtype=dtype)
        return (attend_packed(keys_values, self.part(inputs), inputs, dtype),)

    def offers(self, inputs: Inputs) -> Vendors:
        """Return torch's calls: one per sequence, or one with all of them padded.

        They gather keys and values from their pages; "…_gathered" has them gathered beforehand.
        """
        found: Vendors = {"eager": lambda: paged_reference(**inputs)}
        if {"softcap", "sinks"} & set(inputs):
            return found
        q, lengths = inputs["q"], inputs["seq_lens"].tolist()
        queries = list(itertools.pairwise(inputs["cu_seqlens_q"].tolist()))
        # Gathered when first used, and once: they take as much memory as the cache.
        gathered = functools.cache(lambda: _padded(inputs, q.dtype))

        def calls(k_v: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
            tensors = [(q[slice(*own)], *k_v(i)) for i, own in enumerate(queries)]
            return [packed_sdpa(each, inputs) for each in tensors]

        def known(i: int) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = gathered()
            return k[i, : lengths[i]], v[i, : lengths[i]]

        def in_pages() -> torch.Tensor:
            each = calls(lambda i: _sequence(inputs, i, q.dtype))
            return torch.cat([call() for call in each])

        ready = functools.cache(lambda: calls(known))
        found["sdpa"] = in_pages
        found["sdpa_gathered"] = lambda: torch.cat([call() for call in ready()])
        if "alibi_slopes" not in inputs and len(lengths) == q.shape[0] > 1:
            visible = _visible(inputs)
            found["sdpa_padded"] = lambda: padded_sdpa(q, *_padded(inputs, q.dtype), visible)
            found["sdpa_padded_gathered"] = lambda: padded_sdpa(q, *gathered(), visible)
        return found

    def work(self, problem: PagedAttentionProblem) -> Work:
        window, _ = _window(problem)
        heads = problem.kv_heads * problem.group
        return attention_work(problem, _lengths(problem), window, heads, problem.kv_dtype)


def _window(problem: PagedAttentionProblem) -> tuple[int | None, int]:
    """Return the window of a call with this problem, and the keys its block table has room for.

    The problem's keys are those that a window lets the queries of a sequence see.
    """
    keys, queries = problem.keys, problem.queries
    room = keys // problem.page_size * problem.page_size
    if not problem.window:
        return None, room
    # With more queries than half of that, the block table itself is the limit.
    return (keys // 2, 2 * room) if queries < keys else (room - room // 2, room)


def _lengths(problem: PagedAttentionProblem) -> list[tuple[int, int]]:
    """Return the queries and keys of each sequence."""
    _, room = _window(problem)
    queries = lengths(problem.queries, problem.sequences)
    return list(zip(queries, lengths(room, problem.sequences), strict=True))


def _sequence(inputs: Inputs, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and the values of a sequence, (keys, KV heads, size), dequantized."""
    length = int(inputs["seq_lens"][number])
    count = triton.cdiv(length, inputs["k_cache"].shape[1])
    pages = inputs["block_table"][number, :count]
    k, v = (_gathered(inputs, side, pages, dtype)[:length] for side in "kv")
    return k, v


def _padded(inputs: Inputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return those of all sequences, padded: (sequences, keys, KV heads, size)."""
    k, v = (_gathered(inputs, side, inputs["block_table"], dtype) for side in "kv")
    return k, v


def _visible(inputs: Inputs) -> torch.Tensor:
    """Return the mask of the padded keys that the last query of each sequence sees."""
    pages, page_size = inputs["block_table"].shape[1], inputs["k_cache"].shape[1]
    ends = inputs["seq_lens"][:, None]
    positions = torch.arange(pages * page_size, device=ends.device)
    window = inputs["window"]
    return (positions < ends) & (positions >= (0 if window is None else ends - window))


def _gathered(inputs: Inputs, side: str, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Gather the keys or values of some pages, dequantized."""
    cache, scale = inputs[f"{side}_cache"], inputs.get(f"{side}_scale")
    # fp8 tensors cannot be indexed everywhere, bytes can.
    slots = cache.view(torch.uint8) if cache.element_size() == 1 else cache
    rows = slots[pages.long()].flatten(-4, -3).view(cache.dtype).to(dtype)
    return rows if scale is None else rows * scale.to(dtype)
