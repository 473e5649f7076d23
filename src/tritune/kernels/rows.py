"""What kernels for rows share: where rows are whose leading dimensions fold into two, and whether
results stay in the caches.
"""

import triton
import triton.language as tl

#: Results of so many bytes are streamed by default.
_STREAMED_BYTES = 4 << 20


@triton.jit
def row_offsets(row, inner_rows, outer_stride, inner_stride):
    """Where each row begins, in elements: `inner_rows` rows lie in every step of the outer stride.

    64 bits, because a large tensor has more elements than 32 can count.
    """
    outer = (row // inner_rows).to(tl.int64)
    inner = (row % inner_rows).to(tl.int64)
    return outer * outer_stride + inner * inner_stride


def streams(elements: int, dtype: str) -> bool:
    """Whether a CPU's result is written past the caches by default.

    A large one would not stay in them until it is read, and a line that is not in them is read
    before it is written. But lines that are written in halves, as 16-bit numbers are, gain little.
    """
    return dtype == "float32" and 4 * elements >= _STREAMED_BYTES
