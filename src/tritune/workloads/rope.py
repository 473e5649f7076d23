"""Rotary position embedding as a workload, with tables in the model's dtype and positions."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch

from tritune.dtypes import element_bytes
from tritune.kernels import rope as definition
from tritune.kernels.rope import KERNEL, RopeProblem
from tritune.ops.rope import rope
from tritune.workloads.inputs import Maker
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload

#: Rows of the tables: the longest context.
CONTEXT = 8192
#: Fewer tokens than this are those of a batch that decodes.
DECODED = 256


class Rope(Workload):
    name = "rope"
    kernel = KERNEL
    defaults: ClassVar = {
        "tokens": 1024,
        "q_heads": 32,
        "k_heads": 8,
        "size": 128,
        "interleaved": False,
        "inplace": True,
        "dtype": "float16",
    }

    like: ClassVar = {"rotary": "size"}
    buckets = ("tokens",)

    def impossible(self, problem: RopeProblem) -> list[str]:
        if problem.rotary % 2 == 0 and problem.rotary <= problem.size:
            return []
        return [f"rotary is {problem.rotary}, allowed: even, and at most size, {problem.size}"]

    def make(self, problem: RopeProblem, maker: Maker) -> Inputs:
        tokens, size, dtype = problem.tokens, problem.size, problem.dtype
        rows = max(CONTEXT, tokens)
        angles = functools.partial(_angles, rows, problem.rotary, problem.interleaved)
        # One sequence has its tokens in a row; those of a batch that decodes are anywhere.
        positions = maker.shuffled(rows)[:tokens] if tokens < DECODED else torch.arange(tokens)
        return {
            "q": maker.normal(tokens, problem.q_heads, size, dtype=dtype),
            "k": maker.normal(tokens, problem.k_heads, size, dtype=dtype),
            "cos": maker.computed(lambda: angles().cos(), rows, problem.rotary, dtype=dtype),
            "sin": maker.computed(lambda: angles().sin(), rows, problem.rotary, dtype=dtype),
            "positions": maker.indices(positions, torch.int64),
            "interleaved": problem.interleaved,
            "inplace": problem.inplace,
        }

    def run(self, inputs: Inputs) -> Outputs:
        return rope(**inputs)

    def written(self, inputs: Inputs) -> tuple[str, ...]:
        return ("q", "k") if inputs["inplace"] else ()

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        part = self.part(inputs)
        rows = inputs["positions"][part]
        cos, sin = (inputs[name][rows].to(dtype)[:, None] for name in ("cos", "sin"))
        q, k = (inputs[name][part].to(dtype) for name in ("q", "k"))
        return tuple(definition.rope(x, cos, sin, inputs["interleaved"]) for x in (q, k))

    def offers(self, inputs: Inputs) -> Vendors:
        return {"eager": functools.partial(_eager, inputs)}

    def work(self, problem: RopeProblem) -> Work:
        heads, size = problem.q_heads + problem.k_heads, element_bytes(problem.dtype)
        turned = problem.tokens * heads * problem.rotary
        moved = turned if problem.inplace else problem.tokens * heads * problem.size
        tables = 2 * problem.tokens * problem.rotary
        return Work(3 * turned, (moved + tables) * size, moved * size)


def _angles(rows: int, rotary: int, interleaved: bool) -> torch.Tensor:
    """Return one angle for each pair of elements, at falling frequencies, as models do."""
    frequencies = 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    angles = torch.arange(rows)[:, None] * frequencies
    return angles.repeat_interleave(2, dim=-1) if interleaved else torch.cat((angles, angles), 1)


def _eager(inputs: Inputs) -> Outputs:
    cos, sin = (inputs[name][inputs["positions"]].unsqueeze(1) for name in ("cos", "sin"))
    return tuple(
        definition.rope(inputs[name], cos, sin, inputs["interleaved"]) for name in ("q", "k")
    )
