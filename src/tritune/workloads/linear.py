"""Linear layers as workloads: with weights in the dtype of their inputs, and in 8 or 4 bits."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from torch.nn import functional

from tritune.dtypes import element_bytes
from tritune.kernels import linear as plain
from tritune.kernels import linear_quantized as quantized
from tritune.kernels.linear import LinearProblem
from tritune.kernels.linear_quantized import unpack, zero_without_points
from tritune.ops.linear import linear
from tritune.ops.quantize import GROUPS, QuantizedWeight
from tritune.workloads.inputs import Maker
from tritune.workloads.reference.compared import Part, every_nth
from tritune.workloads.workload import Inputs, Outputs, Vendors, Work, Workload, parameter

#: Products whose reference takes a fraction of a second; see `reference.attention`.
PRODUCTS = {torch.float32: 2**32, torch.float16: 2**29, torch.bfloat16: 2**29}
#: Elements of the weight that are converted in a fraction of a second.
WEIGHTS = 2**25


class Linear(Workload):
    name = "linear"
    kernel = plain.KERNEL
    compilable = frozenset({"linear"})
    defaults: ClassVar = {
        "rows": 1,
        "n": 4096,
        "k": 4096,
        "dtype": "float16",
        "inner_contiguous": True,
    }
    buckets = ("rows",)

    def impossible(self, problem: LinearProblem) -> list[str]:
        if problem.n == 1 and not problem.inner_contiguous:
            return ["n is 1, allowed: 2 and more where inner_contiguous=false"]
        return []

    def make(self, problem: LinearProblem, maker: Maker) -> Inputs:
        n, k, dtype = problem.n, problem.k, problem.dtype
        shape = (n, k) if problem.inner_contiguous else (k, n)
        weight = maker.normal(*shape, dtype=dtype, spread=k**-0.5)
        x = maker.normal(problem.rows, k, dtype=dtype)
        return {"x": x, "weight": weight if problem.inner_contiguous else weight.T}

    def run(self, inputs: Inputs) -> Outputs:
        return (linear(**inputs),)

    def part(self, inputs: Inputs) -> Part:
        """Select some columns of all rows."""
        x, (n, k) = inputs["x"], inputs["weight"].shape
        products = x.shape[0] * n * k / PRODUCTS[x.dtype]
        return slice(None), every_nth(n, max(products, n * k / WEIGHTS))

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        weight = inputs["weight"][self.part(inputs)[1]].to(dtype)
        return (plain.reference(inputs["x"].to(dtype), weight),)

    def slack_for(self, problem: Any) -> float:
        # In which order torch adds up fp32 depends on the shape, and it may be a better one.
        return 3.0 if problem.dtype == "float32" else super().slack_for(problem)

    def offers(self, inputs: Inputs) -> Vendors:
        weight = parameter(inputs["weight"])
        return {"linear": functools.partial(functional.linear, inputs["x"], weight)}

    def work(self, problem: LinearProblem) -> Work:
        weight = problem.n * problem.k * element_bytes(problem.dtype)
        return _work(problem, weight)


class LinearQuantized(Linear):
    name = "linear_quantized"
    kernel = quantized.KERNEL
    compilable = frozenset({"dequantized"})
    defaults: ClassVar = {
        "rows": 1,
        "n": 4096,
        "k": 4096,
        "dtype": "float16",
        "bits": 4,
        "group": 128,
        "zero_points": False,
    }
    allowed: ClassVar = {"bits": (8, 4), "group": GROUPS}

    def impossible(self, problem: Any) -> list[str]:
        if problem.k % problem.group:
            return [f"k is {problem.k}, allowed: a multiple of the group, {problem.group}"]
        return []

    def make(self, problem: Any, maker: Maker) -> Inputs:
        """Draw the codes at random: rounding a weight takes long and changes no time."""
        rows, n, k, dtype = problem.rows, problem.n, problem.k, problem.dtype
        groups = n, k // problem.group
        if problem.bits == 8 and not problem.zero_points:
            packed = maker.bytes(n, k, dtype=torch.int8, low=-127, high=127)
        else:
            packed = maker.bytes(n, k * problem.bits // 8, dtype=torch.uint8, low=0, high=255)
        largest = 2**problem.bits - 1
        zeros = maker.bytes(*groups, dtype=torch.uint8, low=largest // 4, high=largest // 4 * 3)
        # So that results have about the size of x.
        spread = k**-0.5 * 4 / largest
        scales = maker.normal(*groups, dtype=dtype).mul_(0.1).add_(1.0).mul_(spread)
        weight = QuantizedWeight(
            packed, scales, zeros if problem.zero_points else None, problem.bits, problem.group
        )
        return {"x": maker.normal(rows, k, dtype=dtype), "weight": weight}

    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        weight = _some_rows(inputs["weight"], self.part(inputs)[1]).dequantize(dtype)
        return (plain.reference(inputs["x"].to(dtype), weight),)

    def offers(self, inputs: Inputs) -> Vendors:
        """Return torch's calls; "dequantized" has the weight in the dtype of x, made beforehand."""
        x, weight = inputs["x"], inputs["weight"]
        dequantized = parameter(weight.dequantize(x.dtype))
        found: Vendors = {"dequantized": functools.partial(functional.linear, x, dequantized)}
        if weight.bits == 4 and x.device.type == "cpu":
            found["int4pack"] = _int4pack(x, weight)
        return found

    def work(self, problem: Any) -> Work:
        groups = problem.n * problem.k // problem.group
        scales = groups * (element_bytes(problem.dtype) + problem.zero_points)
        return _work(problem, problem.n * problem.k * problem.bits // 8 + scales)


def _work(problem: Any, weight_bytes: int) -> Work:
    row = problem.rows * element_bytes(problem.dtype)
    flops = 2 * problem.rows * problem.n * problem.k
    return Work(flops, weight_bytes + row * problem.k, row * problem.n)


def _some_rows(weight: QuantizedWeight, rows: slice) -> QuantizedWeight:
    zeros = None if weight.zeros is None else weight.zeros[rows]
    return QuantizedWeight(
        weight.packed[rows], weight.scales[rows], zeros, weight.bits, weight.group
    )


def _int4pack(x: torch.Tensor, weight: QuantizedWeight) -> Any:
    """Return torch's call for 4-bit weights, `(code - 8) * scale + offset`; CPUs only."""
    codes = unpack(weight.packed, weight.bits, weight.group).to(torch.int32)
    scales = weight.scales.T.float()
    zeros: Any = (
        zero_without_points(weight.bits) if weight.zeros is None else weight.zeros.T.float()
    )
    offsets = torch.stack((scales, (8 - zeros) * scales), dim=2).to(x.dtype).contiguous()
    packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
    product = torch.ops.aten._weight_int4pack_mm_for_cpu
    return functools.partial(product, x, packed, weight.group, offsets)
