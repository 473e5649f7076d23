"""Gated activations: `silu_mul` and `gelu_mul`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton

from tritune.dtypes import dtype_name
from tritune.kernels.gated import KERNEL, GatedProblem, gated_kernel
from tritune.ops.call import allocation
from tritune.ops.call.batching import leading
from tritune.ops.call.call_cache import Repeats
from tritune.ops.call.checks import Check
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.launch import Steps, cdiv
from tritune.ops.call.library import register
from tritune.ops.call.shapes import same_dtype, same_shape
from tritune.policy import config_for

#: What `approximate` may be, and which activation that is.
APPROXIMATIONS = {"tanh": "gelu_tanh", "none": "gelu"}
_calls = Repeats()


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, in fp32 and rounded once: the activation of Llama's feed-forward layer."""
    if (outs := _calls(("silu",), gate, up)) is not None:
        return outs[0]
    with Check("silu_mul") as check:
        _check(check, gate, up)
    return _silu_mul(gate, up)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "tanh") -> torch.Tensor:
    """`gelu(gate) * up`, in fp32 and rounded once. `approximate` is "tanh", or "none" for erf."""
    if (outs := _calls((APPROXIMATIONS.get(approximate),), gate, up)) is not None:
        return outs[0]
    with Check("gelu_mul") as check:
        _check(check, gate, up)
        if approximate not in APPROXIMATIONS:
            check.that(False, f"approximate is {approximate!r}, allowed: 'tanh', 'none'")
    return _gelu_mul(gate, up, approximate)


def _check(check: Check, gate: torch.Tensor, up: torch.Tensor) -> None:
    if check.tensor("gate", gate) & check.tensor("up", up):
        same_shape(check, gate=gate, up=up)
        same_dtype(check, gate=gate, up=up)
        check.same_device(gate=gate, up=up)


def _run(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    if (outs := _calls((activation,), gate, up)) is not None:
        return outs[0]
    out = allocation.empty_like(gate)
    _calls.keep((activation,), (gate, up), (out,), _launch(gate, up, out, activation))
    return out


def _launch(
    gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, activation: str
) -> Steps | None:
    plan = _plan(gate.shape, gate.dtype, activation, gate.stride(), up.stride(), out.stride())
    if plan is None:
        for part in split((gate, up, out), gate.dim()):
            _launch(part[0], part[1], part[2], activation)
        return None
    if not plan.rows:
        return None
    question = (KERNEL, plan.problem, gate.device)
    config = config_for(*question)
    blocks = cdiv(plan.columns, config["BLOCK"])
    steps = Steps(question, config)
    steps.launch(
        gated_kernel,
        (cdiv(plan.rows, config["ROWS"]) * blocks,),
        (gate, up, out),
        plan.integers,
        ACTIVATION=activation,
        **config,
    )
    return steps


class _Plan(NamedTuple):
    problem: GatedProblem
    rows: int
    columns: int
    integers: tuple[int, ...]  # as the kernel takes them, from `rows` on


@functools.lru_cache(maxsize=1024)
def _plan(
    shape: torch.Size, dtype: torch.dtype, activation: str, gate: Strides, up: Strides, out: Strides
) -> _Plan | None:
    """What a launch needs to know beside the tensors; None if they do not fold."""
    # The innermost dimension is the output's, so that it is written in one go.
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
    integers = (rows, inner, columns, *gate, *up, *out)
    return _Plan(problem, rows, columns, integers)


_silu_mul = register(
    "silu_mul(Tensor gate, Tensor up) -> Tensor",
    lambda gate, up: _run(gate, up, "silu"),
    lambda gate, up: torch.empty_like(gate),
    functools.partial(leading, arguments=2),
)
_gelu_mul = register(
    "gelu_mul(Tensor gate, Tensor up, str approximate) -> Tensor",
    lambda gate, up, approximate: _run(gate, up, APPROXIMATIONS[approximate]),
    lambda gate, up, approximate: torch.empty_like(gate),
    functools.partial(leading, arguments=2),
)
