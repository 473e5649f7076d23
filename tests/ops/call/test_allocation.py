"""Large results are allocated in huge pages, where the system has them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tritune
from tritune.ops.call import allocation

SMAPS = Path("/proc/self/smaps")
ELEMENTS = 64 * 2**20 // 4


@pytest.fixture(autouse=True)
def _read_again() -> Iterator[None]:
    allocation._madvise.cache_clear()
    yield
    allocation._madvise.cache_clear()


def _advised(tensor: torch.Tensor) -> bool:
    """Whether the pages in the middle of a tensor are marked."""
    address = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError("the tensor is nowhere")


linux = pytest.mark.skipif(
    not SMAPS.exists() or not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs Linux"
)


@linux
@pytest.mark.parametrize(("setting", "advised"), [("", True), ("1", True), ("0", False)])
def test_a_large_result_is_in_huge_pages_unless_they_are_switched_off(
    monkeypatch: pytest.MonkeyPatch, setting: str, advised: bool
) -> None:
    monkeypatch.setenv("TRITUNE_HUGE_PAGES", setting)
    assert _advised(allocation.empty_like(torch.empty(ELEMENTS))) is advised
    assert _advised(allocation.empty((2, ELEMENTS // 2), torch.empty(1))) is advised


@linux
def test_a_cached_call_has_its_result_in_huge_pages_too() -> None:
    x, weight = torch.ones(ELEMENTS // 1024, 1024), torch.ones(1024)
    for _ in range(3):
        out = tritune.rms_norm(x, weight)
        assert _advised(out)
        del out


def test_a_small_tensor_and_one_without_memory_are_left_alone() -> None:
    assert not allocation.is_large(torch.empty(1024))
    assert not allocation.is_large(torch.empty(ELEMENTS, device="meta"))
