"""Adding two vectors of any length."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, dtype_of, normal


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    x = tl.load(x_ptr + i, mask=inside)
    y = tl.load(y_ptr + i, mask=inside)
    tl.store(out_ptr + i, x + y, mask=inside)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("count", [1, 1000, 98432])
def test_vector_add(dtype, count):
    x, y = normal(dtype_of(dtype), count), normal(dtype_of(dtype), count, seed=1)
    # Room past the end, which must stay as it is.
    out = torch.full((count + 64,), 7, dtype=x.dtype)
    vector_add[(triton.cdiv(count, 1024),)](x, y, out, count, BLOCK=1024)
    assert_same(out[:count], x + y)
    assert (out[count:] == 7).all()
