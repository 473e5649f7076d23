"""RMS normalisation, with or without a residual that is added first."""

from __future__ import annotations

import functools

import torch
import triton

from tritune.dtypes import dtype_name
from tritune.kernels.rms_norm import KERNEL, RmsNormProblem, rms_norm_kernel
from tritune.ops.call import allocation
from tritune.ops.call.batching import leading
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace, cdiv

_norm_cache, _add_norm_cache = CallCache(), CallCache()


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise the last dimension of x: `x / sqrt(mean(x**2) + eps) * weight`.

    Computed in fp32 and rounded once, to the dtype of x. The result is written into `out` if that
    is given; `out` may be x itself.
    """
    if out is None and (outs := _norm_cache((eps,), x, weight)) is not None:
        return outs[0]
    with Check("rms_norm") as check:
        good = check.tensor("x", x) & check.tensor("weight", weight, rank=1)
        if good:
            check.rows("x", x, weight)
        if out is not None and check.tensor("out", out, dtypes=(x.dtype,)) and good:
            check.same_shape(x=x, out=out)
            check.writable("out", out)
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
    if not inplace and (outs := _add_norm_cache((eps,), x, residual, weight)) is not None:
        return outs[0], outs[1]
    with Check("add_rms_norm") as check:
        good = check.tensor("x", x) & check.tensor("weight", weight, rank=1)
        if good:
            check.rows("x", x, weight)
        if check.tensor("residual", residual) and good:
            check.same_shape(x=x, residual=residual)
            check.same_device(x=x, residual=residual, weight=weight)
            if inplace:
                check.writable("x", x)
                check.writable("residual", residual)
                if x is residual:
                    check.fail("x and residual are one tensor: not both can be kept")
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
) -> Trace | None:
    """Write the norm into `out`, and the sum with the residual, if there is one, into `total`."""
    added = () if residual is None or total is None else (residual.stride(), total.stride())
    facts = _launch_facts(x.shape, x.dtype, x.stride(), out.stride(), *added)
    if facts is None:
        for part in split((x, residual, out, total), x.dim() - 1):
            _launch(part[0], part[1], weight, eps, part[2], part[3])
        return None
    problem, numbers = facts
    if not numbers[0]:
        return None
    trace = Trace(KERNEL, problem, x.device)
    config = trace.config
    trace.launch(
        rms_norm_kernel,
        (cdiv(numbers[0], config["ROWS"]),),
        (x, residual, weight, out, total),
        (*numbers, weight.stride(0), eps),
        WHOLE=config["BLOCK"] >= problem.columns,
        **config,
    )
    return trace


@functools.lru_cache(maxsize=1024)
def _launch_facts(
    shape: torch.Size,
    dtype: torch.dtype,
    x: Strides,
    out: Strides,
    residual: Strides | None = None,
    total: Strides | None = None,
) -> tuple[RmsNormProblem, tuple[int, ...]] | None:
    """Return the problem and the kernel's integers, from `rows` on; None if rows do not fold."""
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
    return problem, (rows, inner, columns, *strides)


def _run(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if (outs := _norm_cache((eps,), x, weight)) is not None:
        return outs[0]
    out = allocation.empty_like(x)
    _norm_cache.store((eps,), (x, weight), (out,), _launch(x, None, weight, eps, out, None))
    return out


def _run_out(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    _launch(x, None, weight, eps, out, None)


def _run_inplace(x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    _launch(x, None, weight, eps, x, None)


def _run_add(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if (outs := _add_norm_cache((eps,), x, residual, weight)) is not None:
        return outs[0], outs[1]
    out, total = allocation.empty_like(x), allocation.empty_like(residual)
    trace = _launch(x, residual, weight, eps, out, total)
    _add_norm_cache.store((eps,), (x, residual, weight), (out, total), trace)
    return out, total


def _run_add_inplace(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> None:
    _launch(x, residual, weight, eps, x, residual)


_rms_norm = register(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    _run,
    lambda x, *_: torch.empty_like(x),
    leading(1),
)
_rms_norm_out = register(
    "rms_norm_out(Tensor x, Tensor weight, float eps, Tensor(a!) out) -> ()", _run_out
)
_rms_norm_inplace = register(
    "rms_norm_inplace(Tensor(a!) x, Tensor weight, float eps) -> ()", _run_inplace
)
_add_rms_norm = register(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    _run_add,
    lambda x, residual, *_: (torch.empty_like(x), torch.empty_like(residual)),
    leading(2),
)
_add_rms_norm_inplace = register(
    "add_rms_norm_inplace(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
    _run_add_inplace,
)
