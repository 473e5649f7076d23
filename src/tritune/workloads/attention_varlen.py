"""Attention within packed sequences of different lengths as a workload."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar

import torch

from tritune.kernels.attention import (
    KERNEL,
    AttentionProblem,
    attention_varlen_reference,
)
from tritune.ops.attention import attention_varlen
from tritune.workloads.attention import EAGER_SCORES, Attention, attention_work, seen_window
from tritune.workloads.inputs import Maker, lengths, starts
from tritune.workloads.libraries.sdpa import packed_sdpa
from tritune.workloads.reference.attention import attend, attention_flags, packed_part
from tritune.workloads.reference.compared import Part, taken
from tritune.workloads.workload import Choices, Inputs, Outputs, Values, Vendors, Work


class AttentionVarlen(Attention):
    name = "attention_varlen"
    kernel = KERNEL
    defaults: ClassVar[Values] = {**Attention.defaults, "batch": 4}
    fixed: ClassVar[Values] = {"packed": True, "mask": "none"}
    allowed: ClassVar[Choices] = {}

    def make(self, problem: AttentionProblem, maker: Maker) -> Inputs:
        counts = _lengths(problem)
        q_starts, k_starts = (starts([each[i] for each in counts]) for i in (0, 1))
        heads, kv_heads = problem.heads, problem.heads // problem.group
        size, value_size, dtype = problem.head_size, problem.value_size, problem.dtype
        return {
            "q": maker.normal(q_starts[-1], heads, size, dtype=dtype),
            "k": maker.normal(k_starts[-1], kv_heads, size, dtype=dtype),
            "v": maker.normal(k_starts[-1], kv_heads, value_size, dtype=dtype),
            "cu_seqlens_q": maker.indices(q_starts, torch.int32),
            "cu_seqlens_k": maker.indices(k_starts, torch.int32),
            "max_seqlen_q": problem.queries,
            "max_seqlen_k": problem.keys,
            "causal": problem.causal,
            "window": seen_window(problem.window, problem.keys),
            **attention_flags(heads, maker.device, problem.softcap, problem.alibi),
        }

    def run(self, inputs: Inputs) -> Outputs:
        return (attention_varlen(**inputs),)

    def part(self, inputs: Inputs) -> Part:
        """Some tokens, and some heads."""
        tokens, heads, _ = inputs["q"].shape
        sequences = inputs["cu_seqlens_q"].shape[0] - 1
        return packed_part(tokens, sequences, heads, inputs["max_seqlen_k"], inputs["q"].dtype)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        part, some = self.part(inputs)
        out = []
        for rows, keys in _sequences(inputs):
            chosen = [row for row in taken(part, q.shape[0]) if rows.start <= row < rows.stop]
            if not chosen:
                continue
            # The last query is at the last key.
            own = torch.tensor(chosen, device=q.device)
            positions = own - rows.stop + keys.stop - keys.start
            heads = taken(some, q.shape[1])
            result = attend(q[own], k[keys], v[keys], heads, positions, inputs, dtype)
            out.append(result.transpose(0, 1))
        return (torch.cat(out),)

    def offers(self, inputs: Inputs) -> Vendors:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        found: Vendors = {}
        if q.numel() // q.shape[2] * inputs["max_seqlen_k"] <= EAGER_SCORES:
            flags = {n: x for n, x in inputs.items() if n not in ("max_seqlen_q", "max_seqlen_k")}
            found["eager"] = lambda: attention_varlen_reference(**flags)[0]
        calls = [
            packed_sdpa((q[rows], k[keys], v[keys]), inputs) for rows, keys in _sequences(inputs)
        ]
        if all(calls):
            found["sdpa"] = lambda: torch.cat([call() for call in calls if call])
        if q.device.type == "cuda" and not {"softcap", "alibi_slopes"} & set(inputs):
            found["varlen_attn"] = lambda: _torch_varlen(inputs)
        return found

    def work(self, problem: AttentionProblem) -> Work:
        window = seen_window(problem.window, problem.keys)
        return attention_work(problem, _lengths(problem), window)


def _lengths(problem: AttentionProblem) -> list[tuple[int, int]]:
    """Queries and keys of each sequence: one that has fewer keys has fewer queries, too."""
    queries = lengths(problem.queries, problem.batch)
    return list(zip(queries, lengths(problem.keys, problem.batch), strict=True))


def _sequences(inputs: Inputs) -> Iterator[tuple[slice, slice]]:
    """The rows of q and those of k that each sequence has."""
    bounds = (
        [slice(a, b) for a, b in itertools.pairwise(inputs[name].tolist())]
        for name in ("cu_seqlens_q", "cu_seqlens_k")
    )
    return zip(*bounds, strict=True)


def _torch_varlen(inputs: Inputs) -> torch.Tensor:
    """torch's own kernel for packed sequences, which it has for GPUs."""
    from torch.nn.attention.varlen import varlen_attn

    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    before = -1 if inputs["window"] is None else inputs["window"] - 1
    after = 0 if inputs["causal"] else -1
    window = (before, after)
    out = varlen_attn(*(inputs[name] for name in names), window_size=window, enable_gqa=True)
    return out if isinstance(out, torch.Tensor) else out[0]
