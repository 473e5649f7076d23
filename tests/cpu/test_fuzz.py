"""Random programs: the compiled kernel leaves the same memory behind as Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.cpu import fuzz
from tests.cpu.values import assert_same
from tritune.testing import interpret, launch

ARRAYS = ("P", "Q", "A", "B", "OF", "OI")


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_computes_what_the_interpreter_computes(seed: int) -> None:
    kernel, arguments = getattr(fuzz, f"kernel_{seed}"), fuzz.arguments(seed)
    actual = launch(kernel, (1,), *arguments)
    expected = interpret(kernel, (1,), *arguments)
    for name, got, want in zip(ARRAYS, actual, expected, strict=True):
        try:
            assert_same(got, want, signed_zero=False)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}\n\n{fuzz.source(seed)}") from None
