"""A small kernel, compiled for targets that need not be here."""

import functools
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tritune.targets.limits import limits_of
from tritune.targets.target import Target


@triton.jit
def product_kernel(x_ptr, y_ptr, out_ptr, K, SIZE: tl.constexpr):
    """Of SIZE x K and K x SIZE, with the exponential of the result."""
    rows = tl.arange(0, SIZE)
    inner = tl.arange(0, 64)
    acc = tl.zeros([SIZE, SIZE], tl.float32)
    for start in range(0, K, 64):
        x = tl.load(x_ptr + rows[:, None] * K + start + inner[None, :])
        y = tl.load(y_ptr + (start + inner[:, None]) * SIZE + rows[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(out_ptr + rows[:, None] * SIZE + rows[None, :], tl.exp2(acc))


@functools.cache
def compiled(target: Target, size: int = 64, **options: int) -> Any:
    """What Triton makes of the kernel."""
    source = ASTSource(
        product_kernel,
        {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32", "K": "i32", "SIZE": "constexpr"},
        {"SIZE": size},
    )
    warp_size = 1 if target.family == "cpu" else limits_of(target).warp_size
    gpu = GPUTarget(target.family, target.arch, warp_size)
    return triton.compile(source, target=gpu, options=options)
