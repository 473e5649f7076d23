"""Verification of a config's results, before its time counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tritune.space import Config
from tritune.tuning.case import Case, Expected, ReadsOnly
from tritune.tuning.measure.guard import NAN_BYTE, OTHER_BYTE, Guard, checksums
from tritune.tuning.workers.failures import Failure

#: How many times plain torch's error a vendor's function may have.
_VENDOR_SLACK = 8.0


def verify(
    case: Case, config: Config, expected: Expected | None, sample: Sequence[torch.Tensor] = ()
) -> Failure | None:
    """Run a config twice; what is wrong with it, or None.

    Where nobody knows what to expect, the results are compared with `sample`, another config's.
    Exceptions from running are the caller's to judge.
    """
    inputs = case.read_only() if isinstance(case, ReadsOnly) else ()
    before = checksums(inputs)
    failure = _verify_outputs(case, config, expected, sample)
    pairs = zip(before, checksums(inputs), strict=True)
    changed = [str(number) for number, (was, is_now) in enumerate(pairs) if was != is_now]
    if changed:
        reason = f"changed an input that it may only read (number {', '.join(changed)})"
        return Failure("wrong_result", reason, tainted=True)
    return failure


def _verify_outputs(
    case: Case, config: Config, expected: Expected | None, sample: Sequence[torch.Tensor]
) -> Failure | None:
    first = guarded_run(case, config, NAN_BYTE)
    if isinstance(first, Failure):
        return first
    reason = judge(first, expected, sample)
    if reason is not None:
        return Failure("wrong_result", reason)
    second = guarded_run(case, config, OTHER_BYTE)
    if isinstance(second, Failure):
        return second
    same = same_bits if case.repeatable else _same_up_to_order
    if not all(same(one, other) for one, other in zip(first, second, strict=True)):
        return Failure("wrong_result", "two runs differ")
    return None


def guarded_run(case: Case, config: Config, garbage_byte: int) -> list[torch.Tensor] | Failure:
    """Return copies of the outputs of one run, or how it wrote outside of what it had allocated."""
    case.restore()
    with Guard(garbage_byte) as guard:
        outputs = case.run(config)
    damage = guard.damage()
    if damage is not None:
        return Failure("wrong_result", damage, tainted=True)
    return [output.detach().clone() for output in outputs]


def outputs_of(call: Callable[[], Any]) -> tuple[torch.Tensor, ...]:
    """Call a function; return its tensors, one or several."""
    outputs = call()
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def judge(
    outputs: Sequence[torch.Tensor], expected: Expected | None, sample: Sequence[torch.Tensor]
) -> str | None:
    """Return what is wrong with the outputs, or None."""
    known = expected.reference if expected is not None else sample
    if not known:
        return None
    if len(outputs) != len(known):
        return f"gives {len(outputs)} outputs, expected {len(known)}"
    for number, output in enumerate(outputs):
        if expected is None:
            reason = agrees(output, sample[number])
        else:
            plain = expected.plain[number]
            reason = within_rule(output, expected.reference[number], plain, expected.slack)
        if reason is not None:
            return reason if len(outputs) == 1 else f"output {number}: {reason}"
    return None


def judge_vendor(
    outputs: Sequence[torch.Tensor], expected: Expected | None, sample: Sequence[torch.Tensor]
) -> str | None:
    """Judge with more room for rounding: a vendor's sums may have any order."""
    if expected is not None:
        expected = replace(expected, slack=max(expected.slack, _VENDOR_SLACK))
    return judge(outputs, expected, sample)


def within_rule(
    out: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor, slack: float = 2.0
) -> str | None:
    """Return why a result is worse than the dtype allows; None if it is not.

    max|out - ref| <= slack * max|plain - ref| + 2 * max|ref + 0.3 - 0.3 - ref|

    `reference` is computed with more bits than `out` has, `plain` by torch in the dtype of `out`;
    the last term is the rounding of that dtype itself.
    """
    if not out.shape == reference.shape == plain.shape:
        shapes = (tuple(each.shape) for each in (out, reference, plain))
        return "shape {}, the reference has {}, plain torch {}".format(*shapes)
    if plain.dtype != out.dtype:
        return f"the result is {out.dtype}, plain torch gives {plain.dtype}"
    exact, plain = reference.double(), plain.double()
    infinite = exact.isinf()
    rounded = exact.masked_fill(infinite, 0.0).to(out.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).double().abs()
    plain_error = (plain - exact).masked_fill(infinite, 0.0).abs()
    return _too_far(out, exact, slack * _largest(plain_error) + 2 * _largest(rounding))


def agrees(out: torch.Tensor, sample: torch.Tensor) -> str | None:
    """Return why a result is not what another config gave, up to the order of its sums."""
    if out.shape != sample.shape or out.dtype != sample.dtype:
        return (
            f"{out.dtype} of shape {tuple(out.shape)}, the default config gives "
            f"{sample.dtype} of shape {tuple(sample.shape)}"
        )
    if not out.is_floating_point():
        return None if torch.equal(out, sample) else "differs from what the default config gives"
    exact, absent = sample.double(), sample.isnan()
    # What the default config leaves undefined may be so; NaN elsewhere is a mistake.
    if bool(absent.any()):
        out, exact = out.masked_fill(absent & out.isnan(), 0.0), exact.masked_fill(absent, 0.0)
    # A few roundings of the dtype; of fp32 many more, for its sums are long.
    relative = max(4 * torch.finfo(out.dtype).eps, 2.0**-17)
    return _too_far(out, exact, relative * _largest(exact.masked_fill(exact.isinf(), 0.0).abs()))


def _too_far(out: torch.Tensor, exact: torch.Tensor, allowed: float) -> str | None:
    """Return where the result is further from the exact one than allowed, or None."""
    ours, infinite = out.double(), exact.isinf()
    # Infinities must be the same ones; they have no distance.
    if not torch.equal(ours[infinite], exact[infinite]):
        return "infinities differ"
    errors = (ours - exact).masked_fill(infinite, 0.0).abs()
    # A NaN is neither below nor above: it has to fail.
    bad = ~(errors <= allowed)
    if not bool(bad.any()):
        return None
    worst = errors.nan_to_num(torch.inf).flatten().argmax()
    index = tuple(int(i) for i in torch.unravel_index(worst, errors.shape))
    return (
        f"error {errors[index]:.3e} at {index} ({ours[index]} for {exact[index]}), allowed "
        f"{allowed:.3e}; {int(bad.sum())} of {bad.numel()} elements are off"
    )


def _largest(values: torch.Tensor) -> float:
    return values.max().item() if values.numel() else 0.0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are the same, bit for bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pair = (each.contiguous().flatten().view(torch.uint8) for each in (one, other))
    return torch.equal(*pair)


def _same_up_to_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    return agrees(one, other) is None
