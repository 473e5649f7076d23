"""A module that a kernel uses by name, as `module.function`."""

import triton
import triton.language as tl

OFFSET = tl.constexpr(3)


@triton.jit
def shifted(x):
    return x + OFFSET
