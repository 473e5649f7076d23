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
from tritune.ops.call.call_cache import Repeats
from tritune.ops.call.checks import Check, looks_inside
from tritune.ops.call.folding import Strides, fold, pair, split
from tritune.ops.call.launch import Steps, cdiv
from tritune.ops.call.library import register
from tritune.ops.call.shapes import described, given, same_dtype, same_shape, writable
from tritune.policy import config_for

_calls, _calls_inplace = Repeats(), Repeats()


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
    """Turn q and k by the angles of their tokens: `x * cos + rotated(x) * sin`, in fp32.

    q is (..., tokens, heads, size) and k the same but for the heads. cos and sin are tables (rows,
    rotary). Element j of a head takes column j: in a NeoX table each angle is there twice, the
    second time half a row later, in an interleaved one twice side by side. Elements past `rotary`
    are kept as they are.

    Without positions, row i belongs to token i; cos and sin may then have q's leading dimensions
    too. With positions, shaped as the leading dimensions of q or as the last of these, row
    `positions[i]` does.
    """
    if (outs := _again(q, k, cos, sin, positions, interleaved, inplace)) is not None:
        return outs
    with Check("rope") as check:
        _check(check, q, k, cos, sin, positions)
        if inplace and not check.reasons:
            writable(check, "q", q)
            writable(check, "k", k)
    if not inplace:
        return _rope(q, k, cos, sin, positions, interleaved)
    _rope_inplace(q, k, cos, sin, positions, interleaved)
    return q, k


def _again(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
    inplace: bool,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The results, if there was a call like this one."""
    calls = _calls_inplace if inplace else _calls
    if positions is None:
        outs = calls((interleaved,), q, k, cos, sin)
    else:
        outs = calls(
            (interleaved,), q, k, cos, sin, positions,
            before=lambda: _check_inside(positions, cos.shape[0]),
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
    same_dtype(check, q=q, k=k)
    same_shape(check, cos=cos, sin=sin)
    if not check.that(
        q.dim() >= 3 and q.dim() == k.dim(),
        f"q has {q.dim()} dimensions and k {k.dim()}, allowed: the same number, 3 or more",
    ):
        return
    if q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        check.that(
            False,
            f"q {described(q)} and k {described(k)} may differ in the heads, their second last "
            f"dimension, only",
        )
    if cos.dim() < 2 or cos.shape[-1] % 2 or not 0 < cos.shape[-1] <= q.shape[-1]:
        check.that(
            False,
            f"cos is {described(cos)}, allowed: two dimensions or more, the last of them even and "
            f"at most as long as that of q {described(q)}",
        )
    elif positions is not None:
        _check_positions(check, q, cos, positions)
    elif not _covers(cos, q):
        check.that(
            False,
            f"cos {described(cos)} must have a row for each token of q {described(q)}; or give "
            f"positions",
        )


def _check_positions(
    check: Check, q: torch.Tensor, cos: torch.Tensor, positions: torch.Tensor
) -> None:
    check.that(
        cos.dim() == 2, f"cos has {cos.dim()} dimensions, allowed with positions: 2 (rows, rotary)"
    )
    leading = q.dim() - 2
    if not 1 <= positions.dim() <= leading or not _broadcasts(
        positions.shape, q.shape[leading - positions.dim() : leading]
    ):
        check.that(
            False,
            f"positions {described(positions)} must be shaped as the leading dimensions of q "
            f"{described(q)}, or as the last of them",
        )


def _covers(cos: torch.Tensor, q: torch.Tensor) -> bool:
    """Whether each token has a row: in a table, or in cos with leading dimensions of q."""
    leading = q.dim() - 2
    if cos.dim() == 2:
        return cos.shape[0] >= q.shape[leading - 1]
    given = cos.dim() - 1
    return given <= leading and _broadcasts(cos.shape[:-1], q.shape[leading - given : leading])


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    return all(a == b or a == 1 for a, b in zip(shape, to, strict=True))


def _check_inside(positions: torch.Tensor, rows: int) -> None:
    if not positions.numel() or not looks_inside(positions):
        return
    with Check("rope") as check:
        low, high = (int(bound) for bound in torch.aminmax(positions))
        check.that(
            low >= 0 and high < rows,
            f"positions are from {low} to {high}, allowed: 0 to {rows - 1}, the rows of cos",
        )


def _by_token(table: torch.Tensor, leading: torch.Size) -> torch.Tensor:
    """One row for each token: a table may be longer, or lack leading dimensions."""
    if table.shape[:-1] == leading:
        return table
    if table.dim() == 2:
        table = table[: leading[-1]]
    return table.expand(*leading, table.shape[-1])


class _Call(NamedTuple):
    """Positions have the leading dimensions of q; without them, cos and sin have."""

    q: torch.Tensor
    k: torch.Tensor
    q_out: torch.Tensor
    k_out: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor | None

    def parts(self) -> Iterator[_Call]:
        """The same in several launches, for strides that do not fold."""
        leading = self.q.dim() - 2
        if self.positions is None:
            for part in split(self, leading):
                yield _Call(*part)
        else:
            for part in split((*self[:4], self.positions), leading):
                yield _Call(part[0], part[1], part[2], part[3], self.cos, self.sin, part[4])


def _launch(call: _Call, interleaved: bool, inplace: bool) -> Steps | None:
    q, cos = call.q, call.cos
    plan = _plan(
        q.shape,
        call.k.shape[-2],
        cos.shape[-1],
        q.dtype,
        interleaved,
        inplace,
        (q.stride(), call.k.stride(), call.q_out.stride(), call.k_out.stride()),
        cos.stride(),
        call.sin.stride(),
        None if call.positions is None else call.positions.stride(),
    )
    if plan is None:
        for part in call.parts():
            _launch(part, interleaved, inplace)
        return None
    if not plan.tokens:
        return None
    question = (KERNEL, plan.problem, q.device)
    config = config_for(*question)
    steps = Steps(question, config)
    steps.launch(
        rope_kernel,
        (cdiv(plan.tokens, config["TOKENS"]) * config["PARTS"],),
        call,
        plan.integers,
        SIZE=plan.problem.size,
        ROTARY=plan.problem.rotary,
        HALF=plan.half,
        REST=plan.rest,
        INTERLEAVED=interleaved,
        **config,
    )
    return steps


class _Plan(NamedTuple):
    problem: RopeProblem
    tokens: int
    integers: tuple[int, ...]  # as the kernel takes them, from `tokens` on
    half: int
    rest: int


@functools.lru_cache(maxsize=1024)
def _plan(
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
) -> _Plan | None:
    """What a launch needs to know beside the tensors; None if their tokens do not fold.

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
    steps = [pair(each, 0) for each in folded.strides]
    if positions is not None:
        steps[4:6] = (0, cos[0]), (0, sin[0])
    integers = (
        *(tokens, inner, q_heads, k_heads),
        *(step for each in steps for step in each),
        *(step for each in heads for step in each[-2:]),
        *(cos[-1], sin[-1]),
    )
    # In place, what is not turned is where it belongs already.
    rest = triton.next_power_of_2(size - rotary) if size > rotary and not inplace else 0
    half = triton.next_power_of_2(rotary // 2)
    return _Plan(problem, tokens, integers, half, rest)


def _prepared(
    outs: tuple[torch.Tensor, torch.Tensor],
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
) -> _Call:
    leading = q.shape[:-2]
    if positions is None:
        return _Call(q, k, *outs, _by_token(cos, leading), _by_token(sin, leading), None)
    _check_inside(positions, cos.shape[0])
    return _Call(q, k, *outs, cos, sin, positions.expand(leading))


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    if (known := _again(q, k, cos, sin, positions, interleaved, inplace=False)) is not None:
        return known
    outs = allocation.empty_like(q), allocation.empty_like(k)
    call = _prepared(outs, q, k, cos, sin, positions)
    steps = _launch(call, interleaved, inplace=False)
    _calls.keep((interleaved,), given(q, k, cos, sin, positions), outs, steps)
    return outs


def _run_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
) -> None:
    if _again(q, k, cos, sin, positions, interleaved, inplace=True) is not None:
        return
    call = _prepared((q, k), q, k, cos, sin, positions)
    steps = _launch(call, interleaved, inplace=True)
    _calls_inplace.keep((interleaved,), given(q, k, cos, sin, positions), (), steps)


_INPUTS = "Tensor cos, Tensor sin, Tensor? positions, bool interleaved"
_rope = register(
    f"rope(Tensor q, Tensor k, {_INPUTS}) -> (Tensor, Tensor)",
    _run,
    lambda q, k, *_: (torch.empty_like(q), torch.empty_like(k)),
    one_by_one,
)
_rope_inplace = register(
    f"rope_inplace(Tensor(a!) q, Tensor(b!) k, {_INPUTS}) -> ()",
    _run_inplace,
    lambda *_: None,
)
