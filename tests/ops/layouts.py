"""Tensors that lie in memory in unusual ways, for the ops that take any strides."""

from __future__ import annotations

import mmap

import torch

from tritune.testing import surrounded

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = (FP32, FP16, BF16)


def normal(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with more bits: what a reference is computed in."""
    return tensor.double() if tensor.dtype == FP32 else tensor.float()


def rearranged(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in a layout of this name; see LAYOUTS."""
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "rows apart":
        return surrounded(tensor, 0.0)
    if layout == "columns apart":
        return tensor.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "reversed dimensions":
        order = tuple(range(tensor.dim()))[::-1]
        return tensor.permute(order).contiguous().permute(order)
    assert layout == "expanded"
    return tensor[:1].expand(tensor.shape)


LAYOUTS = ("contiguous", "rows apart", "columns apart", "reversed dimensions", "expanded")


def far_apart(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The same values, with 2^31 elements or more between the first and the last along `dim`.

    The memory in between is never touched, so that it takes none.
    """
    step = 2**31 // (tensor.shape[dim] - 1) + 64
    strides = [*torch.empty(tensor.shape, device="meta").stride()]
    strides[dim] = step
    elements = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, elements * tensor.element_size(), flags=flags)
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, strides).copy_(tensor)
