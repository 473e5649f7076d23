"""Gated activations: `silu_mul` and `gelu_mul`."""

from __future__ import annotations

import functools

import torch
import triton

from tritune.dtypes import dtype_name
from tritune.kernels.gated import KERNEL, GatedProblem, gated_kernel
from tritune.ops.call import allocation
from tritune.ops.call.batching import leading
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace, cdiv

#: What `approximate` may be, and the activation that it selects.
APPROXIMATIONS = {"tanh": "gelu_tanh", "none": "gelu"}
_cache = CallCache()


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute `silu(gate) * up` in fp32, rounded once: the activation of Llama's MLP."""
    if (outs := _cache(("silu",), gate, up)) is not None:
        return outs[0]
    with Check("silu_mul") as check:
        _check(check, gate, up)
    return _silu_mul(gate, up)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """Compute `gelu(gate) * up` in fp32, rounded once; `approximate`: "tanh", or "none" for erf."""
    if (outs := _cache((APPROXIMATIONS.get(approximate),), gate, up)) is not None:
        return outs[0]
    with Check("gelu_mul") as check:
        _check(check, gate, up)
        if approximate not in APPROXIMATIONS:
            check.fail(f"approximate is {approximate!r}, allowed: 'tanh', 'none'")
    return _gelu_mul(gate, up, approximate)


def _check(check: Check, gate: torch.Tensor, up: torch.Tensor) -> None:
    if check.tensor("gate", gate) & check.tensor("up", up):
        check.same_shape(gate=gate, up=up)
        check.same_dtype(gate=gate, up=up)
        check.same_device(gate=gate, up=up)


def _run(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    if (outs := _cache((activation,), gate, up)) is not None:
        return outs[0]
    out = allocation.empty_like(gate)
    _cache.store((activation,), (gate, up), (out,), _launch(gate, up, out, activation))
    return out


def _launch(
    gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, activation: str
) -> Trace | None:
    facts = _launch_facts(
        gate.shape, gate.dtype, activation, gate.stride(), up.stride(), out.stride()
    )
    if facts is None:
        for part in split((gate, up, out), gate.dim()):
            _launch(part[0], part[1], part[2], activation)
        return None
    problem, numbers = facts
    rows, _, columns, *_ = numbers
    if not rows:
        return None
    trace = Trace(KERNEL, problem, gate.device)
    config = trace.config
    trace.launch(
        gated_kernel,
        (cdiv(rows, config["ROWS"]) * cdiv(columns, config["BLOCK"]),),
        (gate, up, out),
        numbers,
        ACTIVATION=activation,
        **config,
    )
    return trace


@functools.lru_cache(maxsize=1024)
def _launch_facts(
    shape: torch.Size, dtype: torch.dtype, activation: str, gate: Strides, up: Strides, out: Strides
) -> tuple[GatedProblem, tuple[int, ...]] | None:
    """Return the problem and the kernel's integers, from `rows` on; None if strides do not fold."""
    # The innermost dimension is the output's, so that it is written contiguously.
    folded = fold(shape, (out, gate, up))
    if len(folded.sizes) > 3:
        return None
    *leading, columns = folded.sizes or (1,)
    outer, inner = pair(tuple(leading), 1)
    rows = outer * inner if columns else 0
    problem = GatedProblem(
        rows=triton.next_power_of_2(rows),
        columns=columns if rows > 1 else triton.next_power_of_2(columns),
        dtype=dtype_name(dtype),
        activation=activation,
    )
    out, gate, up = ((*pair(each[:-1], 0), *(each[-1:] or (1,))) for each in folded.strides)
    return problem, (rows, inner, columns, *gate, *up, *out)


_silu_mul = register(
    "silu_mul(Tensor gate, Tensor up) -> Tensor",
    lambda gate, up: _run(gate, up, "silu"),
    lambda gate, up: torch.empty_like(gate),
    leading(2),
)
_gelu_mul = register(
    "gelu_mul(Tensor gate, Tensor up, str approximate) -> Tensor",
    lambda gate, up, approximate: _run(gate, up, APPROXIMATIONS[approximate]),
    lambda gate, up, approximate: torch.empty_like(gate),
    leading(2),
)
