"""Tensors for inputs: made fast, the same for the same seed, of sizes that follow from the problem
alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

#: Elements of noise before it repeats: a prime, so that no two rows, heads or tiles are alike.
_PERIOD = 4_194_301

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
    )
}


class Maker:
    """Makes tensors on a device. Unless `filled`, floats are memory that was never written.

    Indices and lengths have their values in any case: ops look at them before they launch.
    """

    def __init__(self, device: torch.device | str, seed: int = 0, filled: bool = True) -> None:
        self.device = torch.device(device)
        self.filled = filled
        self._random = torch.Generator().manual_seed(seed)

    def normal(
        self, *shape: int, dtype: str | torch.dtype = torch.float32, spread: float = 1.0
    ) -> torch.Tensor:
        """Noise of a normal distribution with this standard deviation."""
        kind = DTYPES[dtype] if isinstance(dtype, str) else dtype
        if not self.filled:
            return torch.empty(shape, dtype=kind, device=self.device)
        count = math.prod(shape)
        noise = torch.randn(min(count, _PERIOD), generator=self._random) * spread
        if not kind.is_floating_point:
            noise = noise.round().clamp(-127, 127)
        return self._repeated(noise.to(kind), shape)

    def bytes(self, *shape: int, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
        """Integers from low to high, both included."""
        if not self.filled:
            return torch.empty(shape, dtype=dtype, device=self.device)
        size = (min(math.prod(shape), _PERIOD),)
        noise = torch.randint(low, high + 1, size, dtype=dtype, generator=self._random)
        return self._repeated(noise, shape)

    def computed(self, values: Callable[[], torch.Tensor], *shape: int, dtype: str) -> torch.Tensor:
        """Floats that follow from a formula."""
        if not self.filled:
            return torch.empty(shape, dtype=DTYPES[dtype], device=self.device)
        return values().to(self.device, DTYPES[dtype])

    def indices(self, values: torch.Tensor | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(values, dtype=dtype).to(self.device)

    def shuffled(self, count: int) -> torch.Tensor:
        """The numbers below count in some order, on the CPU."""
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
    """Lengths of the sequences of a batch: the first the longest, the others down to half of it.

    They depend on nothing else, so that the work of a problem is known without its inputs.
    """
    # Multiples of the golden ratio fall evenly between 0 and 1, for any count of them.
    shares = [i * 0.6180339887498949 % 1.0 for i in range(count)]
    return [longest - int(share * (longest // 2)) for share in shares]


def starts(counts: Sequence[int]) -> list[int]:
    """Where each of the packed sequences begins, and where the last one ends."""
    return [0, *itertools.accumulate(counts)]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a reference for this one is computed in."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def element_bytes(dtype: str) -> int:
    return DTYPES[dtype].itemsize
