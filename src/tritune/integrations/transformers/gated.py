"""Feed-forward layers whose activation is gated: `down(act(gate(x)) * up(x))`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tritune.ops.gated  # noqa: F401  (defines the ops)
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

_silu_mul: Any = torch.ops.tritune.silu_mul.default
_gelu_mul: Any = torch.ops.tritune.gelu_mul.default


def _gelu_tanh(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _gelu_mul(gate, up, "tanh")


def _gelu_erf(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _gelu_mul(gate, up, "none")


def swap_gated(enabled: Enabled, module: torch.nn.Module) -> None:
    """Let a feed-forward layer call `tritune.silu_mul` or `tritune.gelu_mul`."""
    if not is_plain(module) or not (hasattr(module, "act_fn") or hasattr(module, "activation_fn")):
        return
    makers = []
    if _linears(module, "gate_proj", "up_proj", "down_proj"):
        makers.append(_separate)
    if _linears(module, "gate_up_proj", "down_proj"):
        makers.append(_fused)
    for make in makers:
        for multiply in (_silu_mul, _gelu_tanh, _gelu_erf):
            forward = make(multiply)
            if _right(module, forward):
                swap_forward(enabled, "gated layers", module, forward)
                return
    if makers:
        leave(enabled, "gated layers", module)


def _linears(module: torch.nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), torch.nn.Linear) for name in names)


def _right(module: Any, forward: Forward) -> bool:
    first = module.gate_proj if hasattr(module, "gate_proj") else module.gate_up_proj
    with torch.no_grad():
        x = question(1, 1, first.in_features, like=first.weight)
        return serves(x) and agree(forward(module, x), module(x))


def _separate(multiply: Callable[..., Any]) -> Forward:
    def forward(self: Any, x: torch.Tensor) -> Any:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if not serves(gate, up):
            return type(self).forward(self, x)
        return self.down_proj(multiply(gate, up))

    return forward


def _fused(multiply: Callable[..., Any]) -> Forward:
    def forward(self: Any, hidden_states: torch.Tensor) -> Any:
        both = self.gate_up_proj(hidden_states)
        if not serves(both):
            return type(self).forward(self, hidden_states)
        return self.down_proj(multiply(*both.chunk(2, dim=-1)))

    return forward
