"""Attention within packed sequences of different lengths as a workload."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch

from tritune.kernels.attention import (
    KERNEL,
    AttentionProblem,
    attention_varlen_reference,
)
from tritune.ops.attention import attention_varlen
from tritune.workloads.attention import EAGER_SCORES, Attention, window_argument
from tritune.workloads.inputs import Maker, lengths, offsets
from tritune.workloads.libraries.sdpa import packed_sdpa
from tritune.workloads.reference.attention import attend_packed, attention_flags, packed_part
from tritune.workloads.reference.compared import Part
from tritune.workloads.workload import Inputs, Outputs, Vendors


class AttentionVarlen(Attention):
    name = "attention_varlen"
    kernel = KERNEL
    defaults: ClassVar = {**Attention.defaults, "batch": 4}
    fixed: ClassVar = {"packed": True, "mask": "none"}
    allowed: ClassVar = {}

    def make(self, problem: AttentionProblem, maker: Maker) -> Inputs:
        counts = self.lengths(problem)
        q_starts, k_starts = (offsets([each[i] for each in counts]) for i in (0, 1))
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
            "window": window_argument(problem.window, problem.keys),
            **attention_flags(heads, maker.device, problem.softcap, problem.alibi),
        }

    def run(self, inputs: Inputs) -> Outputs:
        return (attention_varlen(**inputs),)

    def part(self, inputs: Inputs) -> Part:
        """Select some tokens and some heads."""
        tokens, heads, _ = inputs["q"].shape
        sequences = inputs["cu_seqlens_q"].shape[0] - 1
        return packed_part(tokens, sequences, heads, inputs["max_seqlen_k"], inputs["q"].dtype)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        def keys_values(number: int) -> tuple[torch.Tensor, torch.Tensor]:
            keys = _sequences(inputs)[number][1]
            return inputs["k"][keys], inputs["v"][keys]

        return (attend_packed(keys_values, self.part(inputs), inputs, dtype),)

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

    def lengths(self, problem: AttentionProblem) -> list[tuple[int, int]]:
        # A sequence that has fewer keys has fewer queries, too.
        queries = lengths(problem.queries, problem.batch)
        return list(zip(queries, lengths(problem.keys, problem.batch), strict=True))


def _sequences(inputs: Inputs) -> list[tuple[slice, slice]]:
    """Return the rows of q and those of k that each sequence has."""
    rows, keys = (
        itertools.starmap(slice, itertools.pairwise(inputs[name].tolist()))
        for name in ("cu_seqlens_q", "cu_seqlens_k")
    )
    return list(zip(rows, keys, strict=True))


def _torch_varlen(inputs: Inputs) -> torch.Tensor:
    """Call torch's own kernel for packed sequences, which it has for GPUs."""
    from torch.nn.attention.varlen import varlen_attn

    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    before = -1 if inputs["window"] is None else inputs["window"] - 1
    after = 0 if inputs["causal"] else -1
    window = (before, after)
    out = varlen_attn(*(inputs[name] for name in names), window_size=window, enable_gqa=True)
    return out if isinstance(out, torch.Tensor) else out[0]
