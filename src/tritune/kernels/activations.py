"""Activations, as device code of float32 values that kernels share, and as torch defines them."""

import torch
import triton
import triton.language as tl

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation that is named, or none."""
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
        tl.static_assert(ACTIVATION is None, "an activation that is not known")
        return x


@triton.jit
def _sigmoid(x):
    # 2^(-x log2(e)) is infinite where x is very negative; the quotient is then zero, as it should.
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


def activation_reference(x: torch.Tensor, activation: str | None) -> torch.Tensor:
    """The definition; in the arithmetic of its input."""
    if activation is None:
        return x
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return getattr(torch.nn.functional, activation)(x)
