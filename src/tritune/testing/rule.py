"""The numerical rule, by which the tuner verifies every config, as assertions."""

from __future__ import annotations

import torch

from tritune.tuning.measure.verify import agrees, same_bits, within_rule


def assert_within_rule(
    out: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor, slack: float = 2.0
) -> None:
    """Fail, with the worst element, unless a result is as accurate as its dtype allows.

    `reference` is computed in a higher precision, `plain` by plain torch in the dtype of
    `out`: max|out - reference| <= slack * max|plain - reference|, plus the rounding of the dtype.
    """
    reason = within_rule(out, reference, plain, slack)
    assert reason is None, reason


def assert_agrees(out: torch.Tensor, sample: torch.Tensor) -> None:
    """Fail unless two results, of two configs for example, agree up to the order of their sums."""
    reason = agrees(out, sample)
    assert reason is None, reason


def assert_same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    """Fail unless two results are the same, bit for bit: NaN equals NaN, 0.0 is not -0.0."""
    assert same_bits(one, other), f"not the same bits: {agrees(one, other) or 'by rounding only'}"
