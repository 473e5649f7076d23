"""Device code that kernels share: the rows of tensors whose leading dimensions fold into two."""

import triton
import triton.language as tl


@triton.jit
def row_offsets(row, inner_rows, outer_stride, inner_stride):
    """Where each row begins, in elements: `inner_rows` rows lie in every step of the outer stride.

    64 bits, because a large tensor has more elements than 32 can count.
    """
    outer = (row // inner_rows).to(tl.int64)
    inner = (row % inner_rows).to(tl.int64)
    return outer * outer_stride + inner * inner_stride
