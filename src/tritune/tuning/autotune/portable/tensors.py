"""Tensors in files: memory is kept as regions of bytes, a tensor as a view of its region.

Arguments that share memory share it again where they are read. Each region begins at the same
place relative to a cache line as the original, because Triton compiles other code for pointers
that are divisible by 16.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime.jit import MockTensor

from tritune.tuning.autotune.portable.errors import PortableError

#: Memory on both sides of a region that no correct kernel touches, and what is written there.
GUARD_BYTES = 4096
GUARD_VALUE = 0xA5
#: Addresses agree with the original's up to this.
_ALIGNMENT = 256


@dataclass
class _Region:
    start: int
    end: int
    device: torch.device
    storages: list[torch.UntypedStorage]

    def overlaps(self, other: _Region) -> bool:
        same = self.device == other.device
        return same and self.start < other.end and other.start < self.end


class TensorFiles:
    """The writing side: collects tensors, then writes each piece of memory once."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []
        self._views: list[tuple[dict[str, Any], torch.Tensor]] = []

    def view(self, tensor: torch.Tensor, where: str) -> dict[str, Any]:
        """Return a description of the tensor; complete once `write` has been called."""
        if tensor.layout is not torch.strided or type(tensor).__name__ == "FakeTensor":
            raise PortableError(f"{where} is a {type(tensor).__name__} without memory of its own")
        if tensor.data_ptr() % tensor.element_size():
            raise PortableError(f"{where} is a tensor at an address between two of its elements")
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        self._add(_Region(start, start + storage.nbytes(), tensor.device, [storage]))
        view: dict[str, Any] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
        }
        self._views.append((view, tensor))
        return view

    @property
    def nbytes(self) -> int:
        return sum(region.end - region.start for region in self._regions)

    def write(self, folder: str) -> list[dict[str, Any]]:
        """Write the memory; a description of each region."""
        for view, tensor in self._views:
            number = self._region_of(tensor)
            view["region"] = number
            view["offset_bytes"] = tensor.data_ptr() - self._regions[number].start
        for number, region in enumerate(self._regions):
            _bytes_of(region).numpy().tofile(os.path.join(folder, f"region{number}"))
        return [
            {
                "nbytes": region.end - region.start,
                "alignment": region.start % _ALIGNMENT,
                "device": str(region.device),
            }
            for region in self._regions
        ]

    def _add(self, region: _Region) -> None:
        """Storages that overlap, as those made from one numpy array may, become one region."""
        for other in [each for each in self._regions if each.overlaps(region)]:
            self._regions.remove(other)
            region.start, region.end = min(region.start, other.start), max(region.end, other.end)
            region.storages += other.storages
        self._regions.append(region)

    def _region_of(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for number, region in enumerate(self._regions):
            if region.device == tensor.device and region.start <= start and end <= region.end:
                return number
        raise AssertionError("every tensor was added with its region")


def _bytes_of(region: _Region) -> torch.Tensor:
    content = torch.empty(region.end - region.start, dtype=torch.uint8)
    for storage in region.storages:
        at = storage.data_ptr() - region.start
        source = torch.empty(0, dtype=torch.uint8, device=region.device).set_(storage)
        content[at : at + storage.nbytes()].copy_(source)
    return content


class Regions:
    """The reading side: private copies of the memory, with guards around each region."""

    def __init__(self, folder: str, descriptions: list[dict[str, Any]]) -> None:
        self._pristine = [
            _mapped(os.path.join(folder, f"region{number}"), description)
            for number, description in enumerate(descriptions)
        ]
        self._contents = [
            _guarded(pristine, description)
            for pristine, description in zip(self._pristine, descriptions, strict=True)
        ]
        self.restore(self.numbers)

    @property
    def numbers(self) -> range:
        return range(len(self._contents))

    def tensor(self, view: Mapping[str, Any]) -> torch.Tensor:
        """Return the tensor that was described, in this process's copy of its memory."""
        return _view(self._contents[view["region"]], view)

    def begin_with_zeros(self, view: Mapping[str, Any]) -> None:
        """Let a tensor hold zeros, now and whenever its memory is restored."""
        _view(self._pristine[view["region"]], view).zero_()
        self.tensor(view).zero_()

    def changed(self) -> set[int]:
        """Return the regions that are not as they were read."""
        pairs = zip(self._contents, self._pristine, strict=True)
        return {
            number for number, (now, before) in enumerate(pairs) if not torch.equal(now, before)
        }

    def restore(self, numbers: Iterable[int]) -> None:
        """Put these regions and the guards around them back as they were read."""
        for number in numbers:
            self._contents[number].copy_(self._pristine[number])
        for guard in self.guards(numbers):
            guard.fill_(GUARD_VALUE)

    def guards(self, numbers: Iterable[int]) -> list[torch.Tensor]:
        """Return the bytes before and after these regions."""
        found = []
        for content in (self._contents[number] for number in numbers):
            whole = torch.empty(0, dtype=torch.uint8, device=content.device)
            whole.set_(content.untyped_storage())
            begin = content.storage_offset()
            end = begin + content.numel()
            found += [whole[begin - GUARD_BYTES : begin], whole[end : end + GUARD_BYTES]]
        return found


def _mapped(path: str, description: Mapping[str, Any]) -> torch.Tensor:
    """Return the bytes of a file, which writing to them does not change; on a GPU, a copy of them.
    """
    nbytes = description["nbytes"]
    if nbytes:
        content = torch.from_file(path, shared=False, size=nbytes, dtype=torch.uint8)
    else:
        content = torch.empty(0, dtype=torch.uint8)
    return content.to(description["device"])


def _guarded(content: torch.Tensor, description: Mapping[str, Any]) -> torch.Tensor:
    """Room for a region in a buffer that is longer, at an address like the original's."""
    size = content.numel() + 2 * GUARD_BYTES + _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, device=content.device)
    begin = GUARD_BYTES
    begin += (description["alignment"] - (buffer.data_ptr() + begin)) % _ALIGNMENT
    return buffer[begin : begin + content.numel()]


def _view(content: torch.Tensor, view: Mapping[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, view["dtype"])
    begin = content.storage_offset() + view["offset_bytes"]
    tensor = torch.empty(0, dtype=dtype, device=content.device)
    storage = content.untyped_storage()
    return tensor.set_(storage, begin // dtype.itemsize, view["shape"], view["strides"])


class Placeholder(MockTensor):
    """What the compiler has to know of a tensor, without its memory."""

    def __init__(self, view: Mapping[str, Any], region: Mapping[str, Any]) -> None:
        super().__init__(getattr(torch, view["dtype"]), list(view["shape"]))
        self._address = region["alignment"] + view["offset_bytes"]
        self._nbytes = region["nbytes"]
        self._strides = tuple(view["strides"])

    def data_ptr(self) -> int:
        return int(self._address)

    def ptr_range(self) -> int:
        return int(self._nbytes)

    def stride(self) -> tuple[int, ...]:
        return self._strides
