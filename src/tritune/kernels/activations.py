"""Activations: device code on float32 values that kernels share, and torch's definitions."""

import torch
import triton
import triton.language as tl

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply the activation; None applies nothing."""
    if ACTIVATION == "relu":
        # Not a maximum, which would turn NaN into zero.
        return tl.where(x < 0, 0.0, x)
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(0.7071067811865476 * x))
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
        return x * _sigmoid(x * (1.5957691216057308 + 0.07135481282830851 * x * x))
    elif ACTIVATION == "silu":
        return x * _sigmoid(x)
    else:
        tl.static_assert(ACTIVATION is None, "unknown activation")
        return x


@triton.jit
def _sigmoid(x):
    # Where x is very negative, 2^(-x log2(e)) is infinite, and the quotient zero, as it should be.
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


def activation_reference(x: torch.Tensor, activation: str | None) -> torch.Tensor:
    """Return the definition, computed in the dtype of the input."""
    if activation is None:
        return x
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return getattr(torch.nn.functional, activation)(x)
