"""Gated activations as workloads, of the two halves that one projection gives."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, ClassVar

import torch
import triton

from tritune.dtypes import element_bytes
from tritune.kernels import gated as definition
from tritune.kernels.gated import KERNEL, GatedProblem
from tritune.kernels.kernel import Problem
from tritune.ops.gated import APPROXIMATIONS, gelu_mul, silu_mul
from tritune.workloads.inputs import Maker
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload


class SiluMul(Workload):
    name = "silu_mul"
    kernel = KERNEL
    defaults: ClassVar = {"rows": 1024, "columns": 14336, "dtype": "float16"}
    fixed: ClassVar = {"activation": "silu"}
    buckets = ("rows",)

    def rounded(self, problem: GatedProblem) -> Problem:
        # One row is as any contiguous tensor: only its size matters.
        if problem.rows == 1:
            problem = replace(problem, columns=triton.next_power_of_2(problem.columns))
        return super().rounded(problem)

    def make(self, problem: GatedProblem, maker: Maker) -> Inputs:
        both = maker.normal(problem.rows, 2 * problem.columns, dtype=problem.dtype)
        gate, up = both.chunk(2, dim=1)
        return {"gate": gate, "up": up, **self.options(problem)}

    def options(self, problem: GatedProblem) -> dict[str, Any]:
        return {}

    def activation(self, inputs: Inputs) -> str:
        return "silu"

    def run(self, inputs: Inputs) -> Outputs:
        return (silu_mul(**inputs),)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        part = self.part(inputs)
        gate, up = (inputs[name][part].to(dtype) for name in ("gate", "up"))
        return (definition.gated(gate, up, self.activation(inputs)),)

    def offers(self, inputs: Inputs) -> Vendors:
        arguments = inputs["gate"], inputs["up"], self.activation(inputs)
        return {"eager": functools.partial(definition.gated, *arguments)}

    def work(self, problem: GatedProblem) -> Work:
        elements = problem.rows * problem.columns
        half = elements * element_bytes(problem.dtype)
        return Work(6 * elements, 2 * half, half)


class GeluMul(SiluMul):
    name = "gelu_mul"
    defaults: ClassVar = {
        "rows": 1024,
        "columns": 10240,
        "dtype": "float16",
        "activation": "gelu_tanh",
    }
    fixed: ClassVar = {}
    allowed: ClassVar = {"activation": tuple(APPROXIMATIONS.values())}

    def options(self, problem: GatedProblem) -> dict[str, Any]:
        names = {activation: name for name, activation in APPROXIMATIONS.items()}
        return {"approximate": names[problem.activation]}

    def activation(self, inputs: Inputs) -> str:
        return APPROXIMATIONS[inputs["approximate"]]

    def owns(self, problem: Problem) -> bool:
        return problem.fields()["activation"] in self.allowed["activation"]

    def run(self, inputs: Inputs) -> Outputs:
        return (gelu_mul(**inputs),)
