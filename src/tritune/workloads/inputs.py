"""Inputs of ops: made fast, equal for equal seeds, with shapes that depend on the problem alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

#: Elements of noise before it repeats: a prime, so that no two rows, heads or tiles are alike.
_PERIOD = 4_194_301


class Maker:
    """Makes tensors on a device. Floats are uninitialised memory unless `filled`.

    Indices and lengths always have their values: ops read them before they launch.
    """

    def __init__(self, device: torch.device | str, seed: int = 0, filled: bool = True) -> None:
        self.device = torch.device(device)
        self.filled = filled
        self._random = torch.Generator().manual_seed(seed)

    def normal(
        self, *shape: int, dtype: str | torch.dtype = torch.float32, spread: float = 1.0
    ) -> torch.Tensor:
        """Draw from a normal distribution with this standard deviation."""
        kind: torch.dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if not self.filled:
            return torch.empty(shape, dtype=kind, device=self.device)
        count = math.prod(shape)
        noise = torch.randn(min(count, _PERIOD), generator=self._random) * spread
        if not kind.is_floating_point:
            noise = noise.round().clamp(-127, 127)
        return self._repeated(noise.to(kind), shape)

    def bytes(self, *shape: int, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
        """Draw integers from low to high, both included."""
        if not self.filled:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size = (min(math.prod(shape), _PERIOD),)
        noise = torch.randint(low, high + 1, size, dtype=dtype, generator=self._random)
        return self._repeated(noise, shape)

    def computed(self, values: Callable[[], torch.Tensor], *shape: int, dtype: str) -> torch.Tensor:
        """Return the floats of a formula."""
        if not self.filled:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
        return values().to(self.device, getattr(torch, dtype))

    def indices(self, values: torch.Tensor | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype).to(self.device)

    def shuffled(self, count: int) -> torch.Tensor:
        """Return the numbers below count in random order, on the CPU."""
        return torch.randperm(count, generator=self._random)

    def _repeated(self, noise: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        noise = noise.to(self.device)
        count = math.prod(shape)
        if count <= noise.numel():
            return noise.view(shape)
        out = torch.empty(count, dtype=noise.dtype, device=self.device)
        for start in range(0, count, _PERIOD):
            out[start : start + _PERIOD] = noise[: count - start]
        return out.view(shape)


def lengths(longest: int, count: int) -> list[int]:
    """Return the sequence lengths of a batch: the longest first, the others down to half of it.

    They depend on nothing else, so that the work of a problem is known without its inputs.
    """
    # Multiples of the golden ratio fall evenly between 0 and 1, for any count of them.
    shares = [i * 0.6180339887498949 % 1.0 for i in range(count)]
    return [longest - int(share * (longest // 2)) for share in shares]


def offsets(counts: Sequence[int]) -> list[int]:
    """Return the offset of each packed sequence, and the end of the last one."""
    return [0, *itertools.accumulate(counts)]


def reference_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the reference for this one is computed."""
    return torch.float64 if dtype == torch.float32 else torch.float32
