"""A linear layer: plain weights or quantized ones, with bias and activation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton

from tritune.dtypes import FLOATS, dtype_name
from tritune.kernels import linear as plain
from tritune.kernels import linear_quantized as quantized
from tritune.kernels.activations import ACTIVATIONS
from tritune.ops.call import allocation
from tritune.ops.call.autocast import autocast, autocasts
from tritune.ops.call.batching import leading
from tritune.ops.call.call_cache import Repeats
from tritune.ops.call.checks import Check
from tritune.ops.call.launch import Steps, cdiv
from tritune.ops.call.library import register
from tritune.ops.call.shapes import described, given
from tritune.ops.quantize import QuantizedWeight
from tritune.policy import config_for
from tritune.targets.device import compile_target
from tritune.targets.target import multiplies_bf16

#: So many rows are few on a CPU, which multiplies most types in fp32.
_MOST_FEW_ROWS = 16
_calls, _calls_quantized = Repeats(), Repeats()


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    """`activation(x @ weight.T + bias)`, as torch.nn.functional.linear and an activation after it.

    x is (..., K), weight (N, K) in any strides or the result of `quantize_weight`, bias (N,).
    Activations: "relu", "gelu", "gelu_tanh", "silu". Sums, bias and activation are computed in fp32
    and rounded once, to the dtype of x. Autocast decides the dtype as it does for torch.
    """
    if (outs := _again(x, weight, bias, activation)) is not None:
        return outs[0]
    if autocasts(x):
        x, bias = autocast(x), autocast(bias)
        weight = weight if isinstance(weight, QuantizedWeight) else autocast(weight)
    with Check("linear") as check:
        if activation is not None and activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            check.that(False, f"activation is {activation!r}, allowed: None, {known}")
        good = check.tensor("x", x)
        if good and x.dim() == 0:
            good = check.that(False, "x has no dimensions, allowed: 1 or more")
        tensors: dict[str, torch.Tensor | None]
        if isinstance(weight, QuantizedWeight):
            tensors = {"weight": weight.packed, "scales": weight.scales, "zeros": weight.zeros}
            for name, part in tensors.items():
                good &= part is None or check.dense(name, part)
        else:
            tensors = {"weight": weight}
            good &= check.tensor("weight", weight, 2, (x.dtype,) if good else FLOATS)
        if bias is not None:
            tensors["bias"] = bias
            good &= check.tensor("bias", bias, 1, (x.dtype,) if good else FLOATS)
        if good:
            _check_sizes(check, x, weight, bias)
            check.same_device(x=x, **tensors)
    if isinstance(weight, QuantizedWeight):
        return _linear_quantized(
            x,
            weight.packed,
            weight.scales,
            weight.zeros,
            bias,
            activation,
            weight.bits,
            weight.group,
        )
    return _linear(x, weight, bias, activation)


def _again(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, ...] | None:
    """The result, if there was a call like this one."""
    if isinstance(weight, QuantizedWeight):
        tensors = given(x, weight.packed, weight.scales, weight.zeros, bias)
        options = (activation, weight.bits, weight.group, weight.zeros is None)
        return _calls_quantized(options, *tensors)
    return _calls((activation,), *given(x, weight, bias))


def _check_sizes(
    check: Check,
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
) -> None:
    n, k = weight.shape
    if x.shape[-1] != k:
        check.that(
            False,
            f"the last dimension of x {described(x)} must be as long as the rows of the weight "
            f"({n}, {k})",
        )
    if bias is not None and bias.shape[0] != n:
        check.that(
            False,
            f"bias {described(bias)} must have one element for each row of the weight ({n}, {k})",
        )


def _run(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor:
    inputs = given(x, weight, bias)
    if (outs := _calls((activation,), *inputs)) is not None:
        return outs[0]
    n, k = weight.shape
    rows = _rows(x)
    problem = plain.LinearProblem(
        rows=triton.next_power_of_2(rows.shape[0]),
        n=n,
        k=k,
        dtype=dtype_name(x.dtype),
        inner_contiguous=weight.stride(1) == 1,
    )
    question = (plain.KERNEL, problem, x.device)
    config = config_for(*question)
    steps = Steps(question, config)
    # What is multiplied as it is would only be read in twice the bytes, and one row costs less to
    # convert in every program than in a step of its own.
    one_row = rows.shape[0] == 1 and config["METHOD"] == "dot"
    if not (problem.inner_contiguous and (one_row or _multiplied_as_is(rows, config))):
        rows = _converted(rows, config, steps)
    even = k % (config["BLOCK_K"] * config["SPLIT_K"]) == 0

    def launch(grid: tuple[int, int], bias: torch.Tensor | None, out: torch.Tensor) -> None:
        steps.launch(
            plain.linear_kernel,
            grid,
            (rows, weight, bias, out),
            (rows.shape[0], n, k, *rows.stride(), *weight.stride()),
            ACTIVATION=activation,
            EVEN_K=even,
            **config,
        )

    out = _in_parts(launch, rows, n, x, bias, activation, steps)
    _calls.keep((activation,), inputs, (out,), steps)
    return out


def _run_quantized(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str | None,
    bits: int,
    group: int,
) -> torch.Tensor:
    inputs = given(x, packed, scales, zeros, bias)
    options = (activation, bits, group, zeros is None)
    if (outs := _calls_quantized(options, *inputs)) is not None:
        return outs[0]
    n, k = packed.shape[0], packed.shape[1] * 8 // bits
    rows = _rows(x)
    problem = quantized.LinearQuantizedProblem(
        rows=triton.next_power_of_2(rows.shape[0]),
        n=n,
        k=k,
        dtype=dtype_name(x.dtype),
        bits=bits,
        group=group,
        zero_points=zeros is not None,
    )
    question = (quantized.KERNEL, problem, x.device)
    config = config_for(*question)
    steps = Steps(question, config)
    if not _multiplied_as_is(rows, config):
        rows = _converted(rows, config, steps)

    def launch(grid: tuple[int, int], bias: torch.Tensor | None, out: torch.Tensor) -> None:
        strides = (
            *rows.stride(),
            *packed.stride(),
            *scales.stride(),
            *(scales if zeros is None else zeros).stride(),
        )
        steps.launch(
            quantized.linear_quantized_kernel,
            grid,
            (rows, packed, scales, zeros, bias, out),
            (rows.shape[0], n, k, *strides),
            ACTIVATION=activation,
            BITS=bits,
            GROUP=group,
            ZERO_LAST=x.dtype.itemsize < 4 and rows.shape[0] <= _MOST_FEW_ROWS,
            **config,
        )

    out = _in_parts(launch, rows, n, x, bias, activation, steps)
    _calls_quantized.keep(options, inputs, (out,), steps)
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    """x as a matrix; a copy only where its strides do not fold."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _multiplied_as_is(rows: torch.Tensor, config: Mapping[str, Any]) -> bool:
    """Return whether a CPU has an instruction for products of such numbers."""
    if rows.dtype != torch.bfloat16 or config["METHOD"] != "dot":
        return False
    return multiplies_bf16(compile_target(rows.device))


def _converted(rows: torch.Tensor, config: Mapping[str, Any], steps: Steps) -> torch.Tensor:
    """x as the kernel is given it. What multiplies in fp32 would convert x anew for every column of
    the result: for few rows it is cheaper to do so once before.
    """
    if config["METHOD"] == "dot":
        few = rows.shape[0] <= _MOST_FEW_ROWS
        if not few or compile_target(rows.device).family != "cpu":
            return rows
    return steps.converted(rows, torch.float32)


def _in_parts(
    launch: Callable[[tuple[int, int], torch.Tensor | None, torch.Tensor], None],
    rows: torch.Tensor,
    n: int,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    steps: Steps,
) -> torch.Tensor:
    """Run a kernel over its tiles and, if K is split, add up what its parts wrote."""
    config, m = steps.config, rows.shape[0]
    out = allocation.empty((*x.shape[:-1], n), like=x)
    if not out.numel():
        return out
    bias = None if bias is None else bias.contiguous()
    split = config["SPLIT_K"]
    grid = (cdiv(m, config["BLOCK_M"]) * cdiv(n, config["BLOCK_N"]), split)
    if split == 1:
        launch(grid, bias, out)
        return out
    parts = steps.empty((split, m, n), torch.float32)
    launch(grid, None, parts)
    steps.launch(
        plain.add_parts_kernel,
        (m, cdiv(n, 256)),
        (parts, bias, out),
        (m, n),
        ACTIVATION=activation,
        SPLIT_K=split,
        BLOCK=256,
    )
    return out


_linear = register(
    "linear(Tensor x, Tensor weight, Tensor? bias, str? activation) -> Tensor",
    _run,
    lambda x, weight, bias, activation: x.new_empty((*x.shape[:-1], weight.shape[0])),
    functools.partial(leading, arguments=1),
)
_linear_quantized = register(
    "linear_quantized(Tensor x, Tensor packed, Tensor scales, Tensor? zeros, Tensor? bias, "
    "str? activation, int bits, int group) -> Tensor",
    _run_quantized,
    lambda x, packed, *others: x.new_empty((*x.shape[:-1], packed.shape[0])),
    functools.partial(leading, arguments=1),
)
