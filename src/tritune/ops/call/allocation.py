"""Allocation of results, in huge pages where these are large.

The operating system maps memory when it is first written, page by page. With pages of 4 KB that
takes longer than computing a large result, and C libraries unmap large blocks as soon as they are
freed, so every call pays for it. Linux offers huge pages of 2 MB on request. torch requests them
for all tensors if THP_MEM_ALLOC_ENABLE is set; here they are requested for large results only,
which are written as a whole, as numpy does for its arrays.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence

import torch

from tritune.env import HUGE_PAGES

#: Smaller blocks are mostly reused by the allocator without being unmapped.
LEAST_BYTES = 4 * 2**20

_Advise = Callable[[int, int, int], int]


def empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Allocate a tensor with the dtype and on the device of another."""
    return in_huge_pages(like.new_empty(shape))


def empty_like(other: torch.Tensor) -> torch.Tensor:
    """Allocate as `torch.empty_like` does."""
    return in_huge_pages(torch.empty_like(other))


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Request huge pages for the tensor's memory if it is large; return the tensor."""
    if is_large(tensor):
        advise = _madvise()
        if advise is not None:
            storage = tensor.untyped_storage()
            # madvise takes whole pages; other data in the first and the last page is unaffected.
            start = storage.data_ptr() & -mmap.PAGESIZE
            # The result does not matter: it is only advice.
            advise(start, storage.data_ptr() + storage.nbytes() - start, mmap.MADV_HUGEPAGE)
    return tensor


def is_large(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's memory gets huge pages."""
    return tensor.nbytes >= LEAST_BYTES and tensor.is_cpu and type(tensor) is torch.Tensor


@functools.cache
def _madvise() -> _Advise | None:
    """Return C's `madvise`, where it supports huge pages and TRITUNE_HUGE_PAGES allows them."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or HUGE_PAGES.read() is False:
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found: _Advise = advise
    return found
