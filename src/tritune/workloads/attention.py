"""Attention over batches of equal length as a workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import triton

from tritune.dtypes import element_bytes
from tritune.kernels.attention import KERNEL, AttentionProblem, attention_reference
from tritune.kernels.kernel import Problem
from tritune.ops.attention import attention
from tritune.ops.call.attention_checks import LARGEST_HEAD
from tritune.workloads.inputs import Maker
from tritune.workloads.libraries.sdpa import folded_sdpa, sdpa_for
from tritune.workloads.reference.attention import (
    ROW_STEP,
    attend,
    attention_flags,
    excess,
    keys_read,
    visible_pairs,
)
from tritune.workloads.reference.compared import Part, every_nth, indices_of
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload

#: Scores that torch keeps in memory without a fused kernel: more are not worth measuring.
EAGER_SCORES = 2**28


class Attention(Workload):
    name = "attention"
    kernel = KERNEL
    defaults: ClassVar = {
        "batch": 1,
        "heads": 32,
        "group": 4,
        "queries": 1024,
        "head_size": 128,
        "dtype": "float16",
        "causal": True,
        "window": 0,
        "softcap": False,
        "mask": "none",
        "alibi": False,
    }
    like: ClassVar = {"keys": "queries", "value_size": "head_size"}
    fixed: ClassVar = {"packed": False}
    buckets = ("batch", "queries", "keys")
    assisted = frozenset({"sdpa_folded"})
    # Scores in memory make attention slow, however well the code around them is fused.
    compilable = frozenset({"sdpa"})
    allowed: ClassVar = {"mask": ("none", "boolean", "additive")}

    def impossible(self, problem: AttentionProblem) -> list[str]:
        reasons = too_large_heads(problem)
        if problem.heads % problem.group:
            reasons.append(f"group is {problem.group}, allowed: what divides {problem.heads} heads")
        if problem.window and not problem.causal:
            reasons.append(f"window is {problem.window}, which goes with causal=true only")
        return reasons

    def rounded(self, problem: AttentionProblem) -> Problem:
        keys = triton.next_power_of_2(problem.keys)
        # A window of all keys is none.
        window = problem.window if problem.window < problem.keys or problem.window == keys else 0
        window = triton.next_power_of_2(window)
        problem = replace(problem, window=window if window_argument(window, keys) else 0)
        return super().rounded(problem)

    def make(self, problem: AttentionProblem, maker: Maker) -> Inputs:
        batch, heads, kv_heads = problem.batch, problem.heads, problem.heads // problem.group
        queries, keys, dtype = problem.queries, problem.keys, problem.dtype
        inputs: Inputs = {
            "q": maker.normal(batch, heads, queries, problem.head_size, dtype=dtype),
            "k": maker.normal(batch, kv_heads, keys, problem.head_size, dtype=dtype),
            "v": maker.normal(batch, kv_heads, keys, problem.value_size, dtype=dtype),
            "causal": problem.causal,
            "window": window_argument(problem.window, keys),
            **attention_flags(heads, maker.device, problem.softcap, problem.alibi),
        }
        if problem.mask != "none":
            mask = maker.normal(1, 1, queries, keys, dtype=dtype)
            inputs["mask"] = mask > -1.0 if problem.mask == "boolean" else mask
        return inputs

    def run(self, inputs: Inputs) -> Outputs:
        return (attention(**inputs),)

    def part(self, inputs: Inputs) -> Part:
        """Select some rows of some heads of some batch entries."""
        q, keys = inputs["q"], inputs["k"].shape[2]
        batch, heads, queries, _ = q.shape
        rows = every_nth(queries, excess(batch * queries, batch, heads, keys, q.dtype), ROW_STEP)
        count = len(indices_of(rows, queries))
        some = every_nth(heads, excess(batch * count, batch, heads, keys, q.dtype), heads // 2)
        left = excess(batch * count, batch, len(indices_of(some, heads)), keys, q.dtype)
        return every_nth(batch, left), some, rows

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        entries, some, rows = self.part(inputs)
        positions = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[rows]
        if "mask" in inputs:
            inputs = {**inputs, "mask": inputs["mask"][:, :, rows]}
        out = [
            attend(
                q[b, :, rows].transpose(0, 1), k[b].transpose(0, 1), v[b].transpose(0, 1),
                indices_of(some, q.shape[1]), positions, inputs, dtype,
            )
            for b in indices_of(entries, q.shape[0])
        ]  # fmt: skip
        return (torch.stack(out),)

    def offers(self, inputs: Inputs) -> Vendors:
        q, k = inputs["q"], inputs["k"]
        found: Vendors = {}
        if q.numel() // q.shape[3] * k.shape[2] <= EAGER_SCORES:
            found["eager"] = lambda: attention_reference(**inputs)[0]
        fused = sdpa_for(q, k, inputs["v"], inputs)
        folded = folded_sdpa(q, k, inputs["v"], inputs)
        if fused is not None:
            found["sdpa"] = fused
        if folded is not None:
            found["sdpa_folded"] = folded
        return found

    def work(self, problem: AttentionProblem) -> Work:
        window = window_argument(problem.window, problem.keys)
        return attention_work(problem, self.lengths(problem), window, problem.heads, problem.dtype)

    def lengths(self, problem: AttentionProblem) -> list[tuple[int, int]]:
        """Return the number of queries and of keys of each sequence."""
        return [(problem.queries, problem.keys)] * problem.batch


def too_large_heads(problem: Problem) -> list[str]:
    """Return why the op does not take heads of these sizes."""
    return [
        f"{name} is {value}, allowed: 1 to {LARGEST_HEAD}"
        for name, value in problem.fields().items()
        if name in ("head_size", "value_size") and value > LARGEST_HEAD
    ]


def attention_work(
    problem: Any, lengths: list[tuple[int, int]], window: int | None, heads: int, kv_dtype: str
) -> Work:
    """Return the work of sequences with these numbers of queries and keys."""
    both = problem.head_size + problem.value_size
    pairs = sum(visible_pairs(q, k, problem.causal, window) for q, k in lengths)
    queries = sum(q for q, _ in lengths) * heads * element_bytes(problem.dtype)
    keys = sum(keys_read(q, k, window) for q, k in lengths) * heads // problem.group
    return Work(
        2 * both * heads * pairs,
        queries * problem.head_size + keys * both * element_bytes(kv_dtype),
        queries * problem.value_size,
    )


def window_argument(window: int, keys: int) -> int | None:
    """Return the `window` argument of a call whose problem has this window; None without one."""
    if window < keys:
        return window or None
    # A window of all keys would be none; the largest that is one rounds up to the same.
    return keys - 1 if window == triton.next_power_of_2(keys - 1) else None
