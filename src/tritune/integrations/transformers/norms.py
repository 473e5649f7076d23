"""RMS norms: `weight * x / rms(x)`, and Gemma's, which adds one to the weight."""

from __future__ import annotations

import inspect
from typing import Any

import torch

import tritune.ops.rms_norm  # noqa: F401  (defines the op)
from tritune.integrations.enabled import Enabled
from tritune.integrations.transformers.swap import (
    Forward,
    agree,
    is_plain,
    leave,
    question,
    serves,
    swap_forward,
)

_rms_norm: Any = torch.ops.tritune.rms_norm.default


def swap_norm(enabled: Enabled, module: torch.nn.Module) -> None:
    """Let a module that is an RMS norm call `tritune.rms_norm`."""
    if not type(module).__name__.endswith("RMSNorm"):
        return
    forward = _replacement(module)
    if forward is not None:
        swap_forward(enabled, "RMS norms", module, forward)
    else:
        leave(enabled, "RMS norms", module)


def _replacement(module: torch.nn.Module) -> Forward | None:
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not is_plain(module):
        return None
    if not isinstance(weight, torch.nn.Parameter) or weight.dim() != 1:
        return None
    if not isinstance(eps, float) or len(inspect.signature(module.forward).parameters) != 1:
        return None
    with torch.no_grad():
        x = question(1, 1, weight.shape[0], like=weight)
        if not serves(x, weight):
            return None
        answer = module(x)
        for forward in (_norm(eps), _norm_plus_one(eps)):
            if agree(forward(module, x), answer):
                return forward
    return None


def _norm(eps: float) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        if not serves(hidden_states, weight):
            return type(self).forward(self, hidden_states)
        return _rms_norm(hidden_states, weight, eps)

    return forward


def _norm_plus_one(eps: float) -> Forward:
    kept: list[Any] = [None, None]

    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        weight = self.weight
        if not serves(hidden_states, weight):
            return type(self).forward(self, hidden_states)
        # Made anew when the weight is written to or replaced.
        state = (id(weight), weight._version, weight.data_ptr())
        if kept[0] != state:
            kept[:] = state, 1.0 + weight.detach().float()
        return _rms_norm(hidden_states, kept[1], eps)

    return forward
