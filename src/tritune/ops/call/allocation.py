"""New memory, for what an op computes.

An operating system hands memory out when it is first written to, a page at a time. With pages of
4 KB that takes longer than computing a large result does, and C libraries give large pieces back as
soon as they are freed, so every call pays for it. Linux has pages of 2 MB for those who ask. torch
asks if it is told to, for everything (THP_MEM_ALLOC_ENABLE); here it is asked for large results,
all of which is written to, as numpy does for its arrays.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence

import torch

from tritune.env import HUGE_PAGES

#: Below this, memory is mostly used again without being given back.
LEAST_BYTES = 4 * 2**20

_Advise = Callable[[int, int, int], int]


def empty(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """A new tensor with the dtype and on the device of another."""
    return in_large_pages(like.new_empty(shape))


def empty_like(other: torch.Tensor) -> torch.Tensor:
    """`torch.empty_like`."""
    return in_large_pages(torch.empty_like(other))


def in_large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; its memory, if there is much of it, comes in large pages."""
    if is_large(tensor):
        advise = _advise()
        if advise is not None:
            storage = tensor.untyped_storage()
            # From page to page: what else lies in the first and the last does not mind.
            start = storage.data_ptr() & -mmap.PAGESIZE
            # It is only advice: whether it is taken changes no result.
            advise(start, storage.data_ptr() + storage.nbytes() - start, mmap.MADV_HUGEPAGE)
    return tensor


def is_large(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory would be in large pages."""
    return tensor.nbytes >= LEAST_BYTES and tensor.is_cpu and type(tensor) is torch.Tensor


@functools.cache
def _advise() -> _Advise | None:
    """C's `madvise`, where it knows of large pages and nobody has forbidden them."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or HUGE_PAGES.read() is False:
        return None
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found: _Advise = advise
    return found
