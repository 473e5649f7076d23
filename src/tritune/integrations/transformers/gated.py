"""Feed-forward layers whose activation is gated: `down(act(gate(x)) * up(x))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tritune.ops.gated  # noqa: F401  (defines the ops)
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

_silu_mul: Any = torch.ops.tritune.silu_mul.default
_gelu_mul: Any = torch.ops.tritune.gelu_mul.default
#: Activation and product in one, for each kind of activation.
_ACTIVATIONS: tuple[Callable[[torch.Tensor, torch.Tensor], Any], ...] = (
    _silu_mul,
    lambda gate, up: _gelu_mul(gate, up, "tanh"),
    lambda gate, up: _gelu_mul(gate, up, "none"),
)


def patch_gated(enabled: Enabled, module: Any) -> None:
    """Let a feed-forward layer call `tritune.silu_mul` or `tritune.gelu_mul`."""
    activation = getattr(module, "act_fn", getattr(module, "activation_fn", None))
    if activation is None or not is_unpatched(module):
        return
    if _linears(module, "gate_proj", "up_proj", "down_proj"):
        make, first = _separate, module.gate_proj
    elif _linears(module, "gate_up_proj", "down_proj"):
        make, first = _fused, module.gate_up_proj
    else:
        return
    x = probe(1, 1, first.in_features, like=first.weight)
    for forward in map(make, _ACTIVATIONS):
        if replaces(forward, module, x):
            patch_forward(enabled, "gated layers", module, forward)
            return
    leave(enabled, "gated layers", module)


def _linears(module: torch.nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), torch.nn.Linear) for name in names)


def _separate(multiply: Callable[..., Any]) -> Forward:
    def forward(self: Any, x: torch.Tensor) -> Any:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if not supports(gate, up):
            return type(self).forward(self, x)
        return self.down_proj(multiply(gate, up))

    return forward


def _fused(multiply: Callable[..., Any]) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        both = self.gate_up_proj(hidden_states)
        if not supports(both):
            return type(self).forward(self, hidden_states)
        return self.down_proj(multiply(*both.chunk(2, dim=-1)))

    return forward
