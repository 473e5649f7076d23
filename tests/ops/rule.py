"""The numerical rule: a result may be no worse than twice what plain torch makes of the dtype."""

from __future__ import annotations

import torch


def assert_within_rule(
    out: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor, slack: float = 2.0
) -> None:
    """max|out - ref| <= slack * max|plain - ref| + 2 * max|ref + 0.3 - 0.3 - ref|.

    `reference` is computed with more bits than `out` has, `plain` by torch in the dtype of `out`;
    the last term is the rounding of that dtype itself.
    """
    assert out.shape == reference.shape == plain.shape, "results differ in shape"
    assert plain.dtype == out.dtype, f"plain is {plain.dtype}, the result {out.dtype}"
    if out.numel() == 0:
        return
    exact = reference.double()
    # Infinities must be the same ones; they have no distance.
    infinite = exact.isinf()
    assert torch.equal(out.double()[infinite], exact[infinite]), "infinities differ"
    exact, ours, plain = (t.double().masked_fill(infinite, 0.0) for t in (exact, out, plain))
    rounded = exact.to(out.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).double().abs().max().item()
    allowed = slack * (plain - exact).abs().max().item() + 2 * rounding
    errors = (ours - exact).abs()
    # A NaN is neither below nor above: it has to fail.
    if not bool((errors <= allowed).all()):
        bad = ~(errors <= allowed)
        worst = errors.nan_to_num(torch.inf).flatten().argmax()
        index = tuple(int(i) for i in torch.unravel_index(worst, errors.shape))
        raise AssertionError(
            f"error {errors[index]:.3e} at {index} ({ours[index]} for {exact[index]}), allowed "
            f"{allowed:.3e}; {int(bad.sum())} of {bad.numel()} elements are off"
        )
