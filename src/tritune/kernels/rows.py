"""Shared by kernels over rows: offsets of rows with two leading dimensions, and when nontemporal
stores pay.
"""

import triton
import triton.language as tl

#: Results of this many bytes get nontemporal stores by default.
_NONTEMPORAL_BYTES = 4 << 20


@triton.jit
def row_offsets(row, inner_rows, outer_stride, inner_stride):
    """Return where each row begins, in elements; every outer stride holds `inner_rows` rows.

    In 64 bits, as a large tensor has more elements than 32 can count.
    """
    outer = (row // inner_rows).to(tl.int64)
    inner = (row % inner_rows).to(tl.int64)
    return outer * outer_stride + inner * inner_stride


def nontemporal_pays(elements: int, dtype: str) -> bool:
    """Return whether a CPU writes a result with nontemporal stores by default.

    A large one would be evicted before it is read, and an ordinary store reads a line that is not
    in the cache first. But lines that are written in halves, as 16-bit numbers are, gain little.
    """
    return dtype == "float32" and 4 * elements >= _NONTEMPORAL_BYTES
