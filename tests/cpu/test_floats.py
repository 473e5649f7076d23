"""Every value of the narrow formats is what torch says it is, and comes back as its bits."""

from __future__ import annotations

import math

import pytest
import torch

from tritune.cpu import floats

DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FN": torch.float8_e4m3fn,
}


@pytest.mark.parametrize("elem", floats.FORMATS)
def test_all_bits(elem: str) -> None:
    width = DTYPES[elem].itemsize * 8
    integer = {8: torch.int8, 16: torch.int16}[width]
    bits = list(range(-(1 << width - 1), 1 << width - 1))
    expected = torch.tensor(bits, dtype=integer).view(DTYPES[elem]).double().tolist()
    for each, value in zip(bits, expected, strict=True):
        found = floats.from_bits(each & ((1 << width) - 1), elem)
        if math.isnan(value):
            assert math.isnan(found)
        else:
            assert found == value
            assert floats.to_bits(value, elem) == each


@pytest.mark.parametrize("elem", ["f16", "bf16", "f8E5M2"])
def test_rounding_is_to_nearest_even(elem: str) -> None:
    torch.manual_seed(0)
    numbers = torch.cat([torch.randn(2000), torch.randn(2000) * 1e-6, torch.randn(500) * 1e4])
    rounded = numbers.to(DTYPES[elem]).double().tolist()
    for number, expected in zip(numbers.double().tolist(), rounded, strict=True):
        bits = floats.to_bits(number, elem) & ((1 << DTYPES[elem].itemsize * 8) - 1)
        assert floats.from_bits(bits, elem) == expected
