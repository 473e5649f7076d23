"""Products of bf16 with integers made of bytes, or of some of their bits."""

import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.values import normal
from tritune.cpu.features import host
from tritune.testing import launch


@triton.jit
def codes_kernel(
    x_ptr, codes_ptr, out_ptr, count,
    FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    SHIFT: tl.constexpr, MASK: tl.constexpr, FEW_FIRST: tl.constexpr,
):  # fmt: skip
    """x c^T for the integers c = (codes >> SHIFT) & MASK, for the rows of codes below `count`."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    if FEW_FIRST:
        acc = tl.full([FEW, MANY], 0.5, tl.float32)
    else:
        acc = tl.full([MANY, FEW], 0.5, tl.float32)
    for step in range(STEPS):
        k = step * K + tl.arange(0, K)
        x = tl.load(x_ptr + few[:, None] * (K * STEPS) + k[None, :])
        codes_ptrs = codes_ptr + many[:, None] * (K * STEPS) + k[None, :]
        codes = tl.load(codes_ptrs, mask=(many < count)[:, None], other=0)
        if SHIFT:
            codes = codes >> SHIFT
        if MASK:
            codes = codes & MASK
        if FEW_FIRST:
            acc = tl.dot(x, codes.to(tl.bfloat16).T, acc)
        else:
            acc = tl.dot(codes.to(tl.bfloat16), x.T, acc)
    if FEW_FIRST:
        tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)
    else:
        tl.store(out_ptr + few[None, :] * MANY + many[:, None], acc)


def every_byte(rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Return all values of a byte and more, beginning with the ends of the range."""
    each = torch.tensor([0, 255, 127, 128, 1, 254, 15, 240, 16, 129]).to(torch.uint8)
    more = torch.randint(0, 256, (rows * k - 10,), generator=torch.manual_seed(0)).to(torch.uint8)
    return torch.cat((each, more)).reshape(rows, k).view(dtype)


def assert_near(out: torch.Tensor, x: torch.Tensor, codes: torch.Tensor) -> None:
    """Assert equality within the rounding errors of sums with a bias of up to 192."""
    x, codes = x.double(), codes.double()
    limit = 2**-22 * (x.abs() @ (codes.abs() + 192).T)
    assert ((out.double() - 0.5 - x @ codes.T).abs() <= limit).all()


def run(few, codes, k, shift=0, mask=0, count=32, few_first=True):
    many, length = codes.shape
    x = normal(torch.bfloat16, few, length)
    *_, out = launch(
        codes_kernel, (1,), x, codes, torch.zeros(few, many), count, FEW=few, MANY=many, K=k,
        STEPS=length // k, SHIFT=shift, MASK=mask, FEW_FIRST=few_first,
    )  # fmt: skip
    kept = codes.clone()
    kept[count:] = 0
    kept = kept >> shift if shift else kept
    assert_near(out, x, kept & mask if mask else kept)
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=["unsigned", "signed"])
@pytest.mark.parametrize("k", [8, 16, 32, 64, 256])
@pytest.mark.parametrize("few", [1, 2, 8, 16])
def test_whole_bytes(few, k, dtype):
    run(few, every_byte(32, 256, dtype), k)


@pytest.mark.parametrize(("shift", "mask"), [(0, 15), (4, 0), (4, 15), (2, 7), (0, 127), (1, 0)])
@pytest.mark.parametrize("few", [1, 4])
def test_some_bits_of_bytes(few, shift, mask):
    run(few, every_byte(32, 128, torch.uint8), 64, shift, mask)


@pytest.mark.parametrize("mask", [15, 127, -16, -127])
def test_some_bits_of_signed_bytes(mask):
    run(2, every_byte(32, 128, torch.int8), 64, 0, mask)


def test_signed_bytes_shifted_with_their_sign():
    run(2, every_byte(32, 128, torch.int8), 64, 4)


def test_more_products_than_a_sum_holds():
    run(1, every_byte(32, 4096, torch.int8), 2048)


@pytest.mark.parametrize("few_first", [True, False])
def test_rows_that_are_masked_off(few_first):
    run(4, every_byte(32, 128, torch.int8), 64, count=21, few_first=few_first)


@triton.jit
def halves_kernel(
    x_ptr, codes_ptr, out_ptr, FEW: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr
):
    """x h^T, where h are the low halves of K bytes and then their high halves."""
    few = tl.arange(0, FEW)
    many = tl.arange(0, MANY)
    k = tl.arange(0, K)
    x = tl.load(x_ptr + few[:, None] * (2 * K) + k[None, :])
    y = tl.load(x_ptr + few[:, None] * (2 * K) + K + k[None, :])
    codes = tl.load(codes_ptr + many[:, None] * K + k[None, :])
    acc = tl.full([FEW, MANY], 0.5, tl.float32)
    acc = tl.dot(x, (codes & 15).to(tl.bfloat16).T, acc)
    acc = tl.dot(y, (codes >> 4).to(tl.bfloat16).T, acc)
    tl.store(out_ptr + few[:, None] * MANY + many[None, :], acc)


@pytest.mark.parametrize("k", [16, 32, 64, 128])
@pytest.mark.parametrize("few", [1, 2, 4, 16])
def test_both_halves_of_bytes(few, k):
    x, codes = normal(torch.bfloat16, few, 2 * k), every_byte(32, k, torch.uint8)
    *_, out = launch(halves_kernel, (1,), x, codes, torch.zeros(few, 32), FEW=few, MANY=32, K=k)
    assert_near(out, x, torch.cat((codes & 15, codes >> 4), 1))


@triton.jit
def middle_kernel(
    x_ptr, codes_ptr, out_ptr, MANY: tl.constexpr, K: tl.constexpr, MASK: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """x m^T, where m are the bits of MASK, moved to the lowest ones."""
    many, k = tl.arange(0, MANY), tl.arange(0, K)
    codes = tl.load(codes_ptr + many[:, None] * K + k[None, :])
    middle = ((codes & MASK) >> SHIFT).to(tl.bfloat16)
    acc = tl.dot(tl.load(x_ptr + k)[None, :], middle.T, tl.full([1, MANY], 0.5, tl.float32))
    tl.store(out_ptr + many[None, :], acc)


@pytest.mark.parametrize(("mask", "shift"), [(0x3C, 2), (0xF0, 4), (0x70, 3), (0xFE, 1)])
def test_bits_that_are_masked_before_they_are_shifted(mask, shift):
    x, codes = normal(torch.bfloat16, 1, 64), every_byte(32, 64, torch.uint8)
    *_, out = launch(
        middle_kernel, (1,), x, codes, torch.zeros(1, 32), MANY=32, K=64, MASK=mask, SHIFT=shift
    )
    assert_near(out, x, (codes & mask) >> shift)


def test_equal_numbers_add_up_exactly():
    """The bias correction is exact."""
    x = torch.full((1, 128), 1000 / 3).bfloat16()
    codes = torch.full((32, 64), 0x88, dtype=torch.uint8)
    *_, out = launch(halves_kernel, (1,), x, codes, torch.zeros(1, 32), FEW=1, MANY=32, K=64)
    assert (out - 0.5 == 8 * x.float().sum()).all()


@pytest.mark.skipif(not host().multiplies_bf16, reason="this CPU has no AVX-512 BF16")
def test_nothing_is_converted():
    tensors = torch.zeros(1, 128).bfloat16(), torch.zeros(32, 64).byte(), torch.zeros(1, 32)
    assembly = halves_kernel[(1,)](*tensors, FEW=1, MANY=32, K=64).asm["asm"]
    assert "vdpbf16ps" in assembly
    assert "vcvt" not in assembly
