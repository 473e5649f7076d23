"""RMS normalisation as a workload, with a residual and without."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from torch.nn import functional

from tritune.dtypes import element_bytes
from tritune.kernels import rms_norm as definition
from tritune.kernels.rms_norm import KERNEL, RmsNormProblem
from tritune.ops.rms_norm import add_rms_norm, rms_norm
from tritune.workloads.inputs import Maker
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload, parameter

EPS = 1e-6


class RmsNorm(Workload):
    name = "rms_norm"
    kernel = KERNEL
    defaults: ClassVar = {"rows": 1024, "columns": 4096, "dtype": "float16"}
    fixed: ClassVar = {"adds": False}
    buckets = ("rows",)

    def make(self, problem: RmsNormProblem, maker: Maker) -> Inputs:
        x = maker.normal(problem.rows, problem.columns, dtype=problem.dtype)
        return {"x": x, "weight": maker.normal(problem.columns, dtype=problem.dtype)}

    def run(self, inputs: Inputs) -> Outputs:
        return (rms_norm(**inputs),)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        x = inputs["x"][self.part(inputs)].to(dtype)
        return (definition.rms_norm(x, inputs["weight"].to(dtype), EPS),)

    def offers(self, inputs: Inputs) -> Vendors:
        x, weight = inputs["x"], parameter(inputs["weight"])
        return {
            "eager": functools.partial(definition.rms_norm, x, weight, EPS),
            "fused": functools.partial(functional.rms_norm, x, weight.shape, weight, EPS),
        }

    def work(self, problem: RmsNormProblem) -> Work:
        return _work(problem, tensors=1, flops=4)


class AddRmsNorm(RmsNorm):
    name = "add_rms_norm"
    fixed: ClassVar = {"adds": True}

    def make(self, problem: RmsNormProblem, maker: Maker) -> Inputs:
        inputs = super().make(problem, maker)
        residual = maker.normal(problem.rows, problem.columns, dtype=problem.dtype)
        return {"x": inputs["x"], "residual": residual, "weight": inputs["weight"]}

    def run(self, inputs: Inputs) -> Outputs:
        return add_rms_norm(**inputs)

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        part = self.part(inputs)
        x, residual = (inputs[name][part].to(dtype) for name in ("x", "residual"))
        return definition.add_rms_norm(x, residual, inputs["weight"].to(dtype), EPS)

    def offers(self, inputs: Inputs) -> Vendors:
        x, residual, weight = inputs["x"], inputs["residual"], parameter(inputs["weight"])

        def fused() -> Any:
            total = x + residual
            return functional.rms_norm(total, weight.shape, weight, EPS), total

        return {
            "eager": functools.partial(definition.add_rms_norm, x, residual, weight, EPS),
            "fused": fused,
        }

    def work(self, problem: RmsNormProblem) -> Work:
        return _work(problem, tensors=2, flops=5)


def _work(problem: RmsNormProblem, tensors: int, flops: int) -> Work:
    """Return the work of reading and writing so many tensors, with `flops` per element."""
    elements = problem.rows * problem.columns
    size = element_bytes(problem.dtype)
    moved = tensors * elements * size
    return Work(flops * elements, moved + problem.columns * size, moved)
