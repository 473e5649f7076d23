"""Rotary position embedding."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton

from tritune.dtypes import INTEGERS, dtype_name
from tritune.kernels.rope import KERNEL, RopeProblem, rope_kernel
from tritune.ops.call import allocation
from tritune.ops.call.batching import one_by_one
from tritune.ops.call.call_cache import CallCache
from tritune.ops.call.checks import Check, checks_values, given, shape_of
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.registration import register
from tritune.ops.call.trace import Trace, cdiv

_cache, _inplace_cache = CallCache(), CallCache()


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    positions: torch.Tensor | None = None,
    interleaved: bool = False,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by the angles of their tokens: `x * cos + rotated(x) * sin`, in fp32.

    q is (..., tokens, heads, size) and k the same but for the heads. cos and sin are tables (rows,
    rotary). Element j of a head takes column j: in a NeoX table each angle is there twice, the
    second time half a row later, in an interleaved one twice side by side. Elements past `rotary`
    are kept as they are.

    Without positions, row i belongs to token i; cos and sin may then have q's leading dimensions
    too. With positions, shaped as the leading dimensions of q or as the last of these, row
    `positions[i]` does.
    """
    if (outs := _cached(q, k, cos, sin, positions, interleaved, inplace)) is not None:
        return outs
    with Check("rope") as check:
        _check(check, q, k, cos, sin, positions)
        if inplace and not check.reasons:
            check.writable("q", q)
            check.writable("k", k)
    if not inplace:
        return _rope(q, k, cos, sin, positions, interleaved)
    _rope_inplace(q, k, cos, sin, positions, interleaved)
    return q, k


def _cached(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
    inplace: bool,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the results on a cache hit."""
    cache = _inplace_cache if inplace else _cache
    if positions is None:
        outs = cache((interleaved,), q, k, cos, sin)
    else:
        outs = cache(
            (interleaved,), q, k, cos, sin, positions,
            before=lambda: _check_range(positions, cos.shape[0]),
        )  # fmt: skip
    if outs is None or not inplace:
        return None if outs is None else (outs[0], outs[1])
    torch.autograd.graph.increment_version((q, k))
    return q, k


def _check(
    check: Check,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> None:
    good = check.tensor("q", q) & check.tensor("k", k)
    good &= check.tensor("cos", cos) & check.tensor("sin", sin)
    if positions is not None:
        good &= check.tensor("positions", positions, dtypes=INTEGERS)
    if not good:
        return
    check.same_device(q=q, k=k, cos=cos, sin=sin, positions=positions)
    check.same_dtype(q=q, k=k)
    check.same_shape(cos=cos, sin=sin)
    if q.dim() < 3 or q.dim() != k.dim():
        check.fail(
            f"q has {q.dim()} dimensions and k {k.dim()}, allowed: the same number, 3 or more"
        )
        return
    if q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        check.fail(
            f"q {shape_of(q)} and k {shape_of(k)} may differ in the heads, their second last "
            "dimension, only"
        )
    if cos.dim() < 2 or cos.shape[-1] % 2 or not 0 < cos.shape[-1] <= q.shape[-1]:
        check.fail(
            f"cos is {shape_of(cos)}, allowed: two dimensions or more, the last of them even and "
            f"at most as long as that of q {shape_of(q)}"
        )
    elif positions is not None:
        _check_positions(check, q, cos, positions)
    elif not _covers(cos, q):
        check.fail(
            f"cos {shape_of(cos)} must have a row for each token of q {shape_of(q)}; or give "
            "positions"
        )


def _check_positions(
    check: Check, q: torch.Tensor, cos: torch.Tensor, positions: torch.Tensor
) -> None:
    if cos.dim() != 2:
        check.fail(f"cos has {cos.dim()} dimensions, allowed with positions: 2 (rows, rotary)")
    if positions.dim() < 1 or not _broadcasts(positions.shape, q.shape[:-2]):
        check.fail(
            f"positions {shape_of(positions)} must be shaped as the leading dimensions of q "
            f"{shape_of(q)}, or as the last of them"
        )


def _covers(cos: torch.Tensor, q: torch.Tensor) -> bool:
    """Return whether cos has a row for each token: a table, or with leading dimensions of q."""
    if cos.dim() == 2:
        return cos.shape[0] >= q.shape[-3]
    return _broadcasts(cos.shape[:-1], q.shape[:-2])


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Return whether a shape can be broadcast to another one, or to the last of its dimensions."""
    return len(shape) <= len(to) and all(
        a == b or a == 1 for a, b in zip(shape, to[len(to) - len(shape) :], strict=True)
    )


def _check_range(positions: torch.Tensor, rows: int) -> None:
    if not positions.numel() or not checks_values(positions):
        return
    low, high = (int(bound) for bound in torch.aminmax(positions))
    if low < 0 or high >= rows:
        with Check("rope") as check:
            check.fail(
                f"positions are from {low} to {high}, allowed: 0 to {rows - 1}, the rows of cos"
            )


def _by_token(table: torch.Tensor, leading: torch.Size) -> torch.Tensor:
    """Return one row for each token: a table may be longer, or lack leading dimensions."""
    if table.shape[:-1] == leading:
        return table
    if table.dim() == 2:
        table = table[: leading[-1]]
    return table.expand(*leading, table.shape[-1])


class _Tensors(NamedTuple):
    """Positions have the leading dimensions of q; without them, cos and sin have."""

    q: torch.Tensor
    k: torch.Tensor
    q_out: torch.Tensor
    k_out: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor | None

    def parts(self) -> Iterator[_Tensors]:
        """Yield the tensors of several launches, for strides that do not fold."""
        leading = self.q.dim() - 2
        if self.positions is None:
            for part in split(self, leading):
                yield _Tensors(*part)
        else:
            for q, k, q_out, k_out, positions in split((*self[:4], self.positions), leading):
                yield _Tensors(q, k, q_out, k_out, self.cos, self.sin, positions)


def _launch(tensors: _Tensors, interleaved: bool, inplace: bool) -> Trace | None:
    q, k, _, _, cos, sin, positions = tensors
    facts = _launch_facts(
        q.shape, k.shape[-2], cos.shape[-1], q.dtype, interleaved, inplace,
        tuple(tensor.stride() for tensor in tensors[:4]), cos.stride(), sin.stride(),
        None if positions is None else positions.stride(),
    )  # fmt: skip
    if facts is None:
        for part in tensors.parts():
            _launch(part, interleaved, inplace)
        return None
    problem, numbers = facts
    tokens, size, rotary = numbers[0], problem.size, problem.rotary
    if not tokens:
        return None
    trace = Trace(KERNEL, problem, q.device)
    config = trace.config
    trace.launch(
        rope_kernel,
        (cdiv(tokens, config["TOKENS"]) * config["PARTS"],),
        tensors,
        numbers,
        SIZE=size,
        ROTARY=rotary,
        HALF=triton.next_power_of_2(rotary // 2),
        # In place, the elements past `rotary` are where they belong.
        REST=0 if inplace else triton.next_power_of_2(size - rotary),
        INTERLEAVED=interleaved,
        **config,
    )
    return trace


@functools.lru_cache(maxsize=1024)
def _launch_facts(
    shape: torch.Size,
    k_heads: int,
    rotary: int,
    dtype: torch.dtype,
    interleaved: bool,
    inplace: bool,
    heads: tuple[Strides, ...],
    cos: Strides,
    sin: Strides,
    positions: Strides | None,
) -> tuple[RopeProblem, tuple[int, ...]] | None:
    """Return the problem and the kernel's integers, from `tokens` on; None if tokens do not fold.

    `heads` are the strides of q, k and the two results.
    """
    *leading, q_heads, size = shape
    by_token = [each[:-2] for each in heads]
    tables = (cos[:-1], sin[:-1]) if positions is None else (None, None)
    folded = fold(leading, [*by_token, *tables, positions])
    if len(folded.sizes) > 2:
        return None
    outer, inner = pair(folded.sizes, 1)
    tokens = outer * inner if size and q_heads + k_heads else 0
    problem = RopeProblem(
        tokens=triton.next_power_of_2(tokens),
        q_heads=q_heads,
        k_heads=k_heads,
        size=size,
        rotary=rotary,
        interleaved=interleaved,
        inplace=inplace,
        dtype=dtype_name(dtype),
    )
    strides = [pair(each, 0) for each in folded.strides]
    if positions is not None:
        strides[4:6] = (0, cos[0]), (0, sin[0])
    return problem, (
        *(tokens, inner, q_heads, k_heads),
        *(stride for each in strides for stride in each),
        *(stride for each in heads for stride in each[-2:]),
        *(cos[-1], sin[-1]),
    )


def _tensors(
    outs: tuple[torch.Tensor, torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> _Tensors:
    leading = q.shape[:-2]
    if positions is None:
        return _Tensors(q, k, *outs, _by_token(cos, leading), _by_token(sin, leading), None)
    _check_range(positions, cos.shape[0])
    return _Tensors(q, k, *outs, cos, sin, positions.expand(leading))


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
    inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    if (known := _cached(q, k, cos, sin, positions, interleaved, inplace)) is not None:
        return known
    outs = (q, k) if inplace else (allocation.empty_like(q), allocation.empty_like(k))
    trace = _launch(_tensors(outs, q, k, cos, sin, positions), interleaved, inplace)
    cache = _inplace_cache if inplace else _cache
    new = () if inplace else outs
    cache.store((interleaved,), given(q, k, cos, sin, positions), new, trace)
    return outs


def _run_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
) -> None:
    _run(q, k, cos, sin, positions, interleaved, inplace=True)


_INPUTS = "Tensor cos, Tensor sin, Tensor? positions, bool interleaved"
_rope = register(
    f"rope(Tensor q, Tensor k, {_INPUTS}) -> (Tensor, Tensor)",
    _run,
    lambda q, k, *_: (torch.empty_like(q), torch.empty_like(k)),
    one_by_one,
)
_rope_inplace = register(f"rope_inplace(Tensor(a!) q, Tensor(b!) k, {_INPUTS}) -> ()", _run_inplace)
