"""Which config a call uses, and what its device is compiled for: as the policy has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from tritune.policy import config_for
from tritune.targets.device import target_of
from tritune.targets.target import Target

__all__ = ["assumed_target", "config_for", "device_target"]

_assumed: ContextVar[Target | None] = ContextVar("tritune_assumed_target", default=None)


def device_target(device: torch.device) -> tuple[str, int | str]:
    """The family and architecture that code for a torch device is made for."""
    target = _assumed.get() or target_of(device)
    return target.family, target.arch


@contextmanager
def assumed_target(target: Target) -> Iterator[None]:
    """Calls in the block prepare code for this target, whatever device their tensors are on."""
    token = _assumed.set(target)
    try:
        yield
    finally:
        _assumed.reset(token)
