"""The function that programs call."""

import torch
import triton

from .kernel import kernel


def KERNEL(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of `x` along its last dimension."""
    matrix = x.reshape(-1, x.shape[-1]).contiguous()
    rows, columns = matrix.shape
    out = torch.empty_like(matrix)
    block = triton.next_power_of_2(columns)
    kernel[lambda meta: (triton.cdiv(rows, meta["LINES"]),)](
        matrix, out, rows, columns, BLOCK=block
    )
    return out.reshape(x.shape)
