"""RMS norms: `weight * x / rms(x)`, and Gemma's, which adds one to the weight."""

from __future__ import annotations

import inspect
from typing import Any

import torch

import tritune.ops.rms_norm  # noqa: F401  (defines the op)
from tritune.integrations.enabled import Enabled
from tritune.integrations.support import supports
from tritune.integrations.transformers.patch import (
    Forward,
    is_unpatched,
    leave,
    patch_forward,
    probe,
    replaces,
)

_rms_norm: Any = torch.ops.tritune.rms_norm.default


def patch_norm(enabled: Enabled, module: torch.nn.Module) -> None:
    """Let a module that is an RMS norm call `tritune.rms_norm`."""
    if not type(module).__name__.endswith("RMSNorm"):
        return
    forward = _replacement(module)
    if forward is not None:
        patch_forward(enabled, "RMS norms", module, forward)
    else:
        leave(enabled, "RMS norms", module)


def _replacement(module: torch.nn.Module) -> Forward | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not is_unpatched(module):
        return None
    if not isinstance(weight, torch.nn.Parameter) or weight.dim() != 1:
        return None
    if not isinstance(eps, float) or len(inspect.signature(module.forward).parameters) != 1:
        return None
    x = probe(1, 1, weight.shape[0], like=weight)
    forwards = (_norm(eps), _norm_plus_one(eps))
    return next((each for each in forwards if replaces(each, module, x)), None)


def _norm(eps: float) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        if not supports(hidden_states, weight):
            return type(self).forward(self, hidden_states)
        return _rms_norm(hidden_states, weight, eps)

    return forward


def _norm_plus_one(eps: float) -> Forward:
    kept: list[Any] = [None, None]

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        if not supports(hidden_states, weight):
            return type(self).forward(self, hidden_states)
        # Made anew when the weight is written to or replaced.
        state = (id(weight), weight._version, weight.data_ptr())
        if kept[0] != state:
            kept[:] = state, 1.0 + weight.detach().float()
        return _rms_norm(hidden_states, kept[1], eps)

    return forward
