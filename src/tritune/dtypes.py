"""The dtypes that ops take, and the names of dtypes in problems and stores."""

from __future__ import annotations

import functools

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
#: The dtypes of quantized KV caches.
QUANTIZED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def dtype_name(dtype: torch.dtype | torch.layout) -> str:
    """Return torch's name without its module, such as "float16"."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def element_bytes(name: str) -> int:
    """Return the size of an element of the dtype with this name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype.itemsize


FLOAT_NAMES = tuple(map(dtype_name, FLOATS))
QUANTIZED_NAMES = tuple(map(dtype_name, QUANTIZED))
