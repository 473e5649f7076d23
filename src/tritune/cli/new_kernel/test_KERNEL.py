"""KERNEL is accurate, stays within its memory, and every config computes the same."""

import pytest
import torch
import triton

import tritune
from tritune.testing import (
    assert_agrees,
    assert_contained,
    assert_matches_interpreter,
    assert_within_rule,
    launch,
)

from .kernel import SPACE, kernel
from .op import KERNEL
from .reference import reference

SHAPES = [(1, 1), (3, 17), (64, 128), (5, 1000)]


@pytest.fixture(autouse=True)
def _no_tuning():
    """Use stored winners or the first config, and tune nothing."""
    with tritune.mode("serve"):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_as_accurate_as_the_dtype_allows(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_within_rule(KERNEL(x), reference(x), torch.softmax(x, dim=-1))


def test_it_stays_within_its_memory():
    assert_contained(KERNEL, torch.randn(7, 100))


def test_every_config_computes_the_same():
    rows, columns, block = 40, 100, 128
    x = torch.randn(rows, columns)
    for config in SPACE.on("cpu", problem={"BLOCK": block}).configs():
        grid = (triton.cdiv(rows, config["LINES"]),)
        out = torch.empty_like(x)
        results = launch(kernel.fn, grid, x, out, rows, columns, block, **config.as_kwargs())
        assert_agrees(results[1], KERNEL(x))


def test_the_interpreter_agrees():
    x, out = torch.randn(6, 50), torch.zeros(6, 50)
    assert_matches_interpreter(kernel.fn, (2,), x, out, 6, 50, BLOCK=64, LINES=4)
