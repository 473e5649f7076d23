"""Dropout whose mask is computed from a seed, never stored."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import assert_same, dtype_of, normal
from tritune.testing import interpret, launch


@triton.jit
def dropout(x_ptr, out_ptr, count, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < count)
    keep = tl.rand(seed, i) > p
    y = tl.where(keep, x / (1 - p), 0.0)
    tl.store(out_ptr + i, y.to(out_ptr.dtype.element_ty), mask=i < count)


def dropped(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    dropout[(triton.cdiv(len(x), 256),)](x, out, len(x), p, seed, BLOCK=256)
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dropout_keeps_and_scales_the_right_share(dtype):
    x = normal(dtype_of(dtype), 10_000).abs() + 1
    out = dropped(x, 0.3, 123)
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.02
    torch.testing.assert_close(out[kept], (x / 0.7)[kept], rtol=1e-3, atol=1e-3)


def test_dropout_depends_on_the_seed_alone():
    x = normal(torch.float32, 1000)
    assert torch.equal(dropped(x, 0.5, 7), dropped(x, 0.5, 7))
    assert not torch.equal(dropped(x, 0.5, 7), dropped(x, 0.5, 8))


def test_dropout_drops_what_the_interpreter_drops():
    args = normal(torch.float32, 500), torch.zeros(500), 500, 0.25, 99
    found, expected = (run(dropout, (2,), *args, BLOCK=256)[1] for run in (launch, interpret))
    assert_same(found == 0, expected == 0)
