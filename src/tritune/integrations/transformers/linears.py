"""Linear layers, with the weights as they are or in 8 or 4 bits."""

from __future__ import annotations

from typing import Any

import torch

from tritune.integrations.enabled import Enabled
from tritune.integrations.support import supports
from tritune.integrations.transformers.patch import Forward, is_unpatched, patch_forward
from tritune.ops.linear import linear
from tritune.ops.quantize import GROUPS, quantize_weight

_linear: Any = torch.ops.tritune.linear.default


def patch_linear(enabled: Enabled, module: torch.nn.Module, bits: int | None, group: int) -> None:
    """Let a linear layer call `tritune.linear`; with `bits`, from now on with a rounded weight.

    The weight itself stays where it is, for the way back. A layer whose rows no group divides is
    left alone.
    """
    if type(module) is not torch.nn.Linear or not is_unpatched(module):
        return
    if not supports(module.weight.detach()):
        return
    if bits is None:
        patch_forward(enabled, "linear layers", module, _as_it_is)
        return
    kind = f"linear layers in {bits} bits"
    fitting = [g for g in GROUPS if g <= group and module.in_features % g == 0]
    if fitting:
        forward = _quantized(module, bits, max(fitting))
        patch_forward(enabled, kind, module, forward)
    else:
        enabled.leave(kind, f"no group of {group} or less divides {module.in_features} inputs")


def _as_it_is(self: Any, input: torch.Tensor) -> Any:
    weight, bias = self.weight, self.bias
    if input.dtype != weight.dtype or not supports(input, weight, bias):
        return type(self).forward(self, input)
    return _linear(input, weight, bias, None)


def _quantized(module: torch.nn.Linear, bits: int, group: int) -> Forward:
    quantized = quantize_weight(module.weight.detach(), bits, group)
    bias = None if module.bias is None else module.bias.detach()

    def forward(self: Any, input: torch.Tensor) -> Any:
        if not supports(input):
            # The weight is a constant now, and what comes before the layer gets its gradients.
            return torch.nn.functional.linear(input, quantized.dequantize(), bias)
        return linear(input, quantized, bias)

    return forward
