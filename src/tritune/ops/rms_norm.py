"""RMS normalisation, with or without a residual that is added first."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton

from tritune.dtypes import dtype_name
from tritune.kernels.rms_norm import KERNEL, RmsNormProblem, rms_norm_kernel
from tritune.ops.call import allocation
from tritune.ops.call.batching import leading
from tritune.ops.call.call_cache import Repeats
from tritune.ops.call.checks import Check
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.launch import Steps, cdiv
from tritune.ops.call.library import register
from tritune.ops.call.shapes import rows_of, same_shape, writable
from tritune.policy import config_for

#: The calls of `rms_norm` and of `add_rms_norm`.
_norms, _sums = Repeats(), Repeats()


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise the last dimension of x: `x / sqrt(mean(x**2) + eps) * weight`.

    Computed in fp32 and rounded once, to the dtype of x. The result is written into `out` if that
    is given; `out` may be x itself.
    """
    if out is None and (outs := _norms((eps,), x, weight)) is not None:
        return outs[0]
    with Check("rms_norm") as check:
        good = check.tensor("x", x) & check.tensor("weight", weight, rank=1)
        if good:
            rows_of(check, "x", x, weight)
        if out is not None and check.tensor("out", out, dtypes=(x.dtype,)) and good:
            same_shape(check, x=x, out=out)
            writable(check, "out", out)
        if good:
            check.same_device(x=x, weight=weight, out=out)
    if out is None:
        return _rms_norm(x, weight, eps)
    if out is x:
        _rms_norm_inplace(x, weight, eps)
    else:
        _rms_norm_out(x, weight, eps, out)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual to x and normalise the sum: `(rms_norm(x + residual), x + residual)`.

    The first result has the dtype of x, the second that of the residual. With `inplace` the norm is
    written where x is, and the sum where the residual is.
    """
    if not inplace and (outs := _sums((eps,), x, residual, weight)) is not None:
        return outs[0], outs[1]
    with Check("add_rms_norm") as check:
        good = check.tensor("x", x) & check.tensor("weight", weight, rank=1)
        if good:
            rows_of(check, "x", x, weight)
        if check.tensor("residual", residual) and good:
            same_shape(check, x=x, residual=residual)
            check.same_device(x=x, residual=residual, weight=weight)
            if inplace:
                writable(check, "x", x)
                writable(check, "residual", residual)
                check.that(x is not residual, "x and residual are one tensor: not both can be kept")
    if not inplace:
        return _add_rms_norm(x, residual, weight, eps)
    _add_rms_norm_inplace(x, residual, weight, eps)
    return x, residual


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    total: torch.Tensor | None,
) -> Steps | None:
    """Norm into `out`; the sum with the residual, if there is one, into `total`."""
    added = () if residual is None or total is None else (residual.stride(), total.stride())
    plan = _plan(x.shape, x.dtype, x.stride(), out.stride(), *added)
    if plan is None:
        for part in split((x, residual, out, total), x.dim() - 1):
            _launch(part[0], part[1], weight, eps, part[2], part[3])
        return None
    if not plan.rows:
        return None
    question = (KERNEL, plan.problem, x.device)
    config = config_for(*question)
    steps = Steps(question, config)
    steps.launch(
        rms_norm_kernel,
        (cdiv(plan.rows, config["ROWS"]),),
        (x, residual, weight, out, total),
        (*plan.integers, weight.stride(0), eps),
        WHOLE=config["BLOCK"] >= plan.problem.columns,
        **config,
    )
    return steps


class _Plan(NamedTuple):
    problem: RmsNormProblem
    rows: int
    integers: tuple[int, ...]  # as the kernel takes them, from `rows` on


@functools.lru_cache(maxsize=1024)
def _plan(
    shape: torch.Size,
    dtype: torch.dtype,
    x: Strides,
    out: Strides,
    residual: Strides | None = None,
    total: Strides | None = None,
) -> _Plan | None:
    """What a launch needs to know beside the tensors; None if their rows do not fold."""
    *leading, columns = shape
    tensors = (x, residual, out, total)
    folded = fold(leading, [each and each[:-1] for each in tensors])
    if len(folded.sizes) > 2:
        return None
    outer, inner = pair(folded.sizes, 1)
    rows = outer * inner if columns else 0
    problem = RmsNormProblem(
        rows=triton.next_power_of_2(rows),
        columns=columns,
        dtype=dtype_name(dtype),
        adds=residual is not None,
    )
    strides = (
        stride
        for each, rest in zip(tensors, folded.strides, strict=True)
        for stride in (*pair(rest, 0), each[-1] if each else 0)
    )
    integers = (rows, inner, columns, *strides)
    return _Plan(problem, rows, integers)


def _run(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if (outs := _norms((eps,), x, weight)) is not None:
        return outs[0]
    out = allocation.empty_like(x)
    _norms.keep((eps,), (x, weight), (out,), _launch(x, None, weight, eps, out, None))
    return out


def _run_out(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    _launch(x, None, weight, eps, out, None)


def _run_inplace(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    _launch(x, None, weight, eps, x, None)


def _run_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if (outs := _sums((eps,), x, residual, weight)) is not None:
        return outs[0], outs[1]
    out, total = allocation.empty_like(x), allocation.empty_like(residual)
    steps = _launch(x, residual, weight, eps, out, total)
    _sums.keep((eps,), (x, residual, weight), (out, total), steps)
    return out, total


def _run_add_inplace(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    _launch(x, residual, weight, eps, x, residual)


_rms_norm = register(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _run,
    lambda x, weight, eps: torch.empty_like(x),
    functools.partial(leading, arguments=1),
)
_rms_norm_out = register(
    "rms_norm_out(Tensor x, Tensor weight, float eps, Tensor(a!) out) -> ()",
    _run_out,
    lambda x, weight, eps, out: None,
)
_rms_norm_inplace = register(
    "rms_norm_inplace(Tensor(a!) x, Tensor weight, float eps) -> ()",
    _run_inplace,
    lambda x, weight, eps: None,
)
_add_rms_norm = register(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    _run_add,
    lambda x, residual, weight, eps: (torch.empty_like(x), torch.empty_like(residual)),
    functools.partial(leading, arguments=2),
)
_add_rms_norm_inplace = register(
    "add_rms_norm_inplace(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    _run_add_inplace,
    lambda x, residual, weight, eps: None,
)
