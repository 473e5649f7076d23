"""The numerical rule: a result may be no worse than twice what plain torch makes of the dtype."""

from __future__ import annotations

import torch

from tritune.tuning.verify import within_rule


def assert_within_rule(
    out: torch.Tensor, reference: torch.Tensor, plain: torch.Tensor, slack: float = 2.0
) -> None:
    """Fail with the reason if the result breaks the rule that the tuner judges by."""
    reason = within_rule(out, reference, plain, slack)
    assert reason is None, reason
