"""The bits of narrow floats, against torch."""

import math

import pytest
import torch

from tritune.cpu.floats import FORMATS as NARROW
from tritune.cpu.floats import from_bits, to_bits
from tritune.cpu.ir import BITS

FORMATS = {
    "f16": (torch.float16, torch.int16),
    "bf16": (torch.bfloat16, torch.int16),
    "f8E4M3FN": (torch.float8_e4m3fn, torch.int8),
    "f8E5M2": (torch.float8_e5m2, torch.int8),
}


def expected_bits(numbers: torch.Tensor, elem: str) -> list[int]:
    dtype, integer = FORMATS[elem]
    return numbers.to(dtype).view(integer).tolist()


@pytest.mark.parametrize("elem", FORMATS)
def test_every_number_of_a_format_keeps_its_bits(elem):
    dtype, integer = FORMATS[elem]
    size = torch.iinfo(integer)
    bits = torch.arange(size.min, size.max + 1, dtype=torch.int32).to(integer)
    numbers = bits.view(dtype).double()
    found = [to_bits(number, elem) for number in numbers.tolist() if not math.isnan(number)]
    assert found == bits[~numbers.isnan()].tolist()


@pytest.mark.parametrize("elem", NARROW)
def test_bits_are_the_number_that_torch_reads(elem):
    dtype, integer = FORMATS[elem]
    bits = torch.arange(1 << BITS[elem], dtype=torch.int32)
    expected = bits.to(integer).view(dtype).double()
    found = torch.tensor([from_bits(each, elem) for each in bits.tolist()], dtype=torch.float64)
    assert torch.equal(found.nan_to_num(nan=-0.5), expected.nan_to_num(nan=-0.5))
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("elem", FORMATS)
def test_other_numbers_are_rounded_to_nearest(elem):
    exponents = torch.randint(-20, 20, (5000,), generator=torch.manual_seed(0))
    numbers = torch.randn(5000, generator=torch.manual_seed(1)) * 2.0**exponents
    found = [to_bits(number, elem) for number in numbers.tolist()]
    assert found == expected_bits(numbers, elem)


@pytest.mark.parametrize("elem", FORMATS)
def test_infinity_and_overflow(elem):
    numbers = torch.tensor([math.inf, -math.inf, 3.4e38, -3.4e38])
    found = [to_bits(number, elem) for number in numbers.tolist()]
    assert found == expected_bits(numbers, elem)


@pytest.mark.parametrize("elem", FORMATS)
def test_nan_stays_nan(elem):
    dtype, integer = FORMATS[elem]
    assert torch.tensor([to_bits(math.nan, elem)], dtype=integer).view(dtype).isnan().all()
