"""A linear layer: plain weights or quantized ones, with bias and activation."""

from __future__ import annotations

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
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check, given, shape_of
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace, cdiv
from tritune.ops.quantize import QuantizedWeight
from tritune.targets.device import compile_target
from tritune.targets.target import multiplies_bf16

#: The most rows of a skinny product on a CPU, which multiplies most types in fp32.
_SKINNY_ROWS = 16
#: Columns of a program that adds up the parts of a split K.
_SUM_COLUMNS = 256
_cache, _quantized_cache = CallCache(), CallCache()


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
) -> torch.Tensor:
    """Compute `activation(x @ weight.T + bias)`, as torch.nn.functional.linear and an activation.

    x is (..., K), weight (N, K) in any strides or the result of `quantize_weight`, bias (N,).
    Activations: "relu", "gelu", "gelu_tanh", "silu". Sums, bias and activation are computed in fp32
    and rounded once, to the dtype of x. Autocast decides the dtype as it does for torch.
    """
    if (outs := _cached(x, weight, bias, activation)) is not None:
        return outs[0]
    if autocasts(x):
        x, bias = autocast(x), autocast(bias)
        weight = weight if isinstance(weight, QuantizedWeight) else autocast(weight)
    with Check("linear") as check:
        if activation is not None and activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            check.fail(f"activation is {activation!r}, allowed: None, {known}")
        good = check.tensor("x", x)
        if good and x.dim() == 0:
            good = check.fail("x has no dimensions, allowed: 1 or more")
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
        parts = (weight.packed, weight.scales, weight.zeros)
        return _linear_quantized(x, *parts, bias, activation, weight.bits, weight.group)
    return _linear(x, weight, bias, activation)


def _cached(
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, ...] | None:
    if isinstance(weight, QuantizedWeight):
        tensors = given(x, weight.packed, weight.scales, weight.zeros, bias)
        options = (activation, weight.bits, weight.group, weight.zeros is None)
        return _quantized_cache(options, *tensors)
    return _cache((activation,), *given(x, weight, bias))


def _check_sizes(
    check: Check,
    x: torch.Tensor,
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
) -> None:
    n, k = weight.shape
    if x.shape[-1] != k:
        check.fail(
            f"the last dimension of x {shape_of(x)} must be as long as the rows of the weight "
            f"({n}, {k})"
        )
    if bias is not None and bias.shape[0] != n:
        check.fail(
            f"bias {shape_of(bias)} must have one element for each row of the weight ({n}, {k})"
        )


def _run(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor:
    inputs = given(x, weight, bias)
    if (outs := _cache((activation,), *inputs)) is not None:
        return outs[0]
    n, k = weight.shape
    rows = _matrix(x)
    problem = plain.LinearProblem(
        rows=triton.next_power_of_2(rows.shape[0]),
        n=n,
        k=k,
        dtype=dtype_name(x.dtype),
        inner_contiguous=weight.stride(1) == 1,
    )
    trace = Trace(plain.KERNEL, problem, x.device)
    config = trace.config
    # A type that the CPU multiplies would only double in size, and a single row is cheaper to
    # convert in every program than in a step of its own.
    one_row = rows.shape[0] == 1 and config["METHOD"] == "dot"
    if not (problem.inner_contiguous and (one_row or _is_multiplied(rows, config))):
        rows = _converted(rows, trace)

    def launch(grid: tuple[int, int], bias: torch.Tensor | None, out: torch.Tensor) -> None:
        trace.launch(
            plain.linear_kernel,
            grid,
            (rows, weight, bias, out),
            (rows.shape[0], n, k, *rows.stride(), *weight.stride()),
            ACTIVATION=activation,
            EVEN_K=k % (config["BLOCK_K"] * config["SPLIT_K"]) == 0,
            **config,
        )

    out = _launch_parts(trace, launch, rows, n, x, bias, activation)
    _cache.store((activation,), inputs, (out,), trace)
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
    if (outs := _quantized_cache(options, *inputs)) is not None:
        return outs[0]
    n, k = packed.shape[0], packed.shape[1] * 8 // bits
    rows = _matrix(x)
    problem = quantized.LinearQuantizedProblem(
        rows=triton.next_power_of_2(rows.shape[0]),
        n=n,
        k=k,
        dtype=dtype_name(x.dtype),
        bits=bits,
        group=group,
        zero_points=zeros is not None,
    )
    trace = Trace(quantized.KERNEL, problem, x.device)
    config = trace.config
    if not _is_multiplied(rows, config):
        rows = _converted(rows, trace)
    tensors = (rows, packed, scales, scales if zeros is None else zeros)
    strides = [stride for tensor in tensors for stride in tensor.stride()]

    def launch(grid: tuple[int, int], bias: torch.Tensor | None, out: torch.Tensor) -> None:
        trace.launch(
            quantized.linear_quantized_kernel,
            grid,
            (rows, packed, scales, zeros, bias, out),
            (rows.shape[0], n, k, *strides),
            ACTIVATION=activation,
            BITS=bits,
            GROUP=group,
            ZERO_LAST=x.dtype.itemsize < 4 and rows.shape[0] <= _SKINNY_ROWS,
            **config,
        )

    out = _launch_parts(trace, launch, rows, n, x, bias, activation)
    _quantized_cache.store(options, inputs, (out,), trace)
    return out


def _matrix(x: torch.Tensor) -> torch.Tensor:
    """Return x as a matrix; a copy only where its strides do not fold."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _is_multiplied(rows: torch.Tensor, config: Mapping[str, Any]) -> bool:
    """Return whether a CPU has an instruction for products of this type."""
    if rows.dtype != torch.bfloat16 or config["METHOD"] != "dot":
        return False
    return multiplies_bf16(compile_target(rows.device))


def _converted(rows: torch.Tensor, trace: Trace) -> torch.Tensor:
    """Convert x to fp32 where the kernel would convert it anew for every column of the result."""
    if trace.config["METHOD"] == "dot":
        skinny = rows.shape[0] <= _SKINNY_ROWS
        if not skinny or compile_target(rows.device).family != "cpu":
            return rows
    return trace.converted(rows, torch.float32)


def _launch_parts(
    trace: Trace,
    launch: Callable[[tuple[int, int], torch.Tensor | None, torch.Tensor], None],
    rows: torch.Tensor,
    n: int,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """Launch a kernel for all tiles and, if K is split, the sum of the parts."""
    config, m = trace.config, rows.shape[0]
    out = allocation.empty((*x.shape[:-1], n), like=x)
    if not out.numel():
        return out
    bias = None if bias is None else bias.contiguous()
    split = config["SPLIT_K"]
    grid = (cdiv(m, config["BLOCK_M"]) * cdiv(n, config["BLOCK_N"]), split)
    if split == 1:
        launch(grid, bias, out)
        return out
    parts = trace.scratch(split, m, n)
    launch(grid, None, parts)
    trace.launch(
        plain.add_parts_kernel,
        (m, cdiv(n, _SUM_COLUMNS)),
        (parts, bias, out),
        (m, n),
        ACTIVATION=activation,
        SPLIT_K=split,
        BLOCK=_SUM_COLUMNS,
    )
    return out


_linear = register(
    "linear(Tensor x, Tensor weight, Tensor? bias, str? activation) -> Tensor",
    _run,
    lambda x, weight, *_: x.new_empty((*x.shape[:-1], weight.shape[0])),
    leading(1),
)
_linear_quantized = register(
    "linear_quantized(Tensor x, Tensor packed, Tensor scales, Tensor? zeros, Tensor? bias, "
    "str? activation, int bits, int group) -> Tensor",
    _run_quantized,
    lambda x, packed, *_: x.new_empty((*x.shape[:-1], packed.shape[0])),
    leading(1),
)
