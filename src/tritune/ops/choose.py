"""Which config a call uses, and what its device is compiled for: as the policy has it."""

from __future__ import annotations

import torch

from tritune.policy import config_for
from tritune.targets.device import target_of

__all__ = ["config_for", "device_target"]


def device_target(device: torch.device) -> tuple[str, int | str]:
    """The family and architecture that code for a torch device is made for."""
    target = target_of(device)
    return target.family, target.arch
