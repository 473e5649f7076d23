"""Tensors in files: memory is kept as regions of bytes, a tensor as a view of its region.

Arguments that share memory share it again where they are read. Each region begins at the same
place relative to a cache line as the original, because Triton compiles other code for pointers
that are divisible by 16.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import MockTensor

from tritune.tuning.autotune.pickling import TransferError

#: Memory on both sides of a region that no correct kernel touches, and what is written there.
GUARD_BYTES = 4096
GUARD_VALUE = 0xA5
#: Addresses agree with the original's up to this.
_ALIGNMENT = 256
_TABLE_FILE = "memory.json"


@dataclass
class _Region:
    start: int
    end: int
    device: torch.device
    storages: list[torch.UntypedStorage]

    def overlaps(self, other: _Region) -> bool:
        same = self.device == other.device
        return same and self.start < other.end and other.start < self.end

    def holds(self, storage: torch.UntypedStorage) -> bool:
        place = storage.data_ptr(), storage.nbytes()
        same = self.device == storage.device
        return same and any((each.data_ptr(), each.nbytes()) == place for each in self.storages)


class TensorFiles:
    """The writing side: collects tensors, then writes each piece of memory once."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []
        self._tensors: list[torch.Tensor] = []
        #: By identity, which no other object can have while the list keeps the tensor.
        self._numbers: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number under which `CallMemory` has the tensor."""
        if id(tensor) in self._numbers:
            return self._numbers[id(tensor)]
        if tensor.layout is not torch.strided or type(tensor).__name__ == "FakeTensor":
            raise TransferError(f"it is a {type(tensor).__name__} without memory of its own")
        if tensor.data_ptr() % tensor.element_size():
            raise TransferError("it is a tensor at an address between two of its elements")
        number = self._numbers[id(tensor)] = len(self._tensors)
        self._tensors.append(tensor)
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        region = _Region(start, start + storage.nbytes(), tensor.device, [storage])
        if any(each.holds(storage) for each in self._regions):
            return number
        # Storages that overlap, as those made from one numpy array may, become one region.
        for other in [each for each in self._regions if each.overlaps(region)]:
            self._regions.remove(other)
            region.start, region.end = min(region.start, other.start), max(region.end, other.end)
            region.storages += other.storages
        self._regions.append(region)
        return number

    @property
    def nbytes(self) -> int:
        return sum(region.end - region.start for region in self._regions)

    def write(self, folder: Path) -> None:
        """Write the memory, and a table of its regions and of the tensors in them."""
        for number, region in enumerate(self._regions):
            _bytes_of(region).numpy().tofile(region_file(folder, number))
        regions = [
            {
                "nbytes": region.end - region.start,
                "alignment": region.start % _ALIGNMENT,
                "device": str(region.device),
            }
            for region in self._regions
        ]
        table = {"regions": regions, "tensors": list(map(self._described, self._tensors))}
        (folder / _TABLE_FILE).write_text(json.dumps(table))

    def _described(self, tensor: torch.Tensor) -> dict[str, Any]:
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        number, region = next(
            (number, each)
            for number, each in enumerate(self._regions)
            if each.device == tensor.device and each.start <= start and end <= each.end
        )
        return {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "region": number,
            "offset_bytes": tensor.data_ptr() - region.start,
        }


def region_file(folder: Path, number: int) -> Path:
    """Return the file of a region's bytes."""
    return folder / f"region{number}"


def memory_table(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what is known of the regions and the tensors in a folder."""
    table: dict[str, list[dict[str, Any]]] = json.loads((folder / _TABLE_FILE).read_text())
    return table


def _bytes_of(region: _Region) -> torch.Tensor:
    content = torch.empty(region.end - region.start, dtype=torch.uint8)
    for storage in region.storages:
        at = storage.data_ptr() - region.start
        source = torch.empty(0, dtype=torch.uint8, device=region.device).set_(storage)
        content[at : at + storage.nbytes()].copy_(source)
    return content


class CallMemory:
    """The reading side: private copies of the memory, with guards around each region.

    Files are read when the first tensor is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        table = memory_table(folder)
        self._tensors, self._regions = table["tensors"], table["regions"]
        self._pristine: list[torch.Tensor] = []
        self._contents: list[torch.Tensor] = []

    @property
    def regions(self) -> range:
        """Return the numbers of the regions."""
        return range(len(self._regions))

    def tensor(self, number: int) -> torch.Tensor:
        """Return a tensor in this process's copy of its memory."""
        if not self._contents:
            self._read()
        view = self._tensors[number]
        dtype = getattr(torch, view["dtype"])
        content = self._contents[view["region"]]
        begin = content.storage_offset() + view["offset_bytes"]
        tensor = torch.empty(0, dtype=dtype, device=content.device)
        storage = content.untyped_storage()
        return tensor.set_(storage, begin // dtype.itemsize, view["shape"], view["strides"])

    def placeholder(self, number: int) -> Placeholder:
        """Return what stands for a tensor where a kernel is only compiled."""
        view = self._tensors[number]
        return Placeholder(view, self._regions[view["region"]])

    def region_of(self, tensor: torch.Tensor) -> int:
        """Return the region of one of these tensors."""
        storage = tensor.untyped_storage().data_ptr()
        starts = [each.untyped_storage().data_ptr() for each in self._contents]
        return starts.index(storage)

    def begin_with_zeros(self, tensor: torch.Tensor) -> None:
        """Let a tensor hold zeros, now and whenever its memory is restored."""
        tensor.zero_()
        number = self.region_of(tensor)
        self._pristine[number].copy_(self._contents[number])

    def changed(self) -> set[int]:
        """Return the regions that are not as they were read."""
        pairs = zip(self._contents, self._pristine, strict=True)
        return {
            number for number, (now, before) in enumerate(pairs) if not torch.equal(now, before)
        }

    def restore(self, regions: Iterable[int]) -> None:
        """Put these regions and the guards around them back as they were read."""
        for number in regions:
            self._contents[number].copy_(self._pristine[number])
        for guard in self.guards(regions):
            guard.fill_(GUARD_VALUE)

    def guards(self, regions: Iterable[int]) -> list[torch.Tensor]:
        """Return the bytes before and after these regions."""
        found = []
        for content in (self._contents[number] for number in regions):
            whole = torch.empty(0, dtype=torch.uint8, device=content.device)
            whole.set_(content.untyped_storage())
            begin = content.storage_offset()
            end = begin + content.numel()
            found += [whole[begin - GUARD_BYTES : begin], whole[end : end + GUARD_BYTES]]
        return found

    def _read(self) -> None:
        for number, region in enumerate(self._regions):
            self._pristine.append(_mapped(region_file(self._folder, number), region))
            self._contents.append(_guarded(self._pristine[-1], region["alignment"]))
        self.restore(self.regions)


def _mapped(path: Path, region: Mapping[str, Any]) -> torch.Tensor:
    """Return the bytes of a file as a private copy, mapped where the device is a CPU."""
    nbytes = region["nbytes"]
    if nbytes:
        content = torch.from_file(str(path), shared=False, size=nbytes, dtype=torch.uint8)
    else:
        content = torch.empty(0, dtype=torch.uint8)
    return content.to(region["device"])


def _guarded(content: torch.Tensor, alignment: int) -> torch.Tensor:
    """Return room for a region in a buffer that is longer, at an address like the original's."""
    size = content.numel() + 2 * GUARD_BYTES + _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, device=content.device)
    begin = GUARD_BYTES
    begin += (alignment - (buffer.data_ptr() + begin)) % _ALIGNMENT
    return buffer[begin : begin + content.numel()]


class Placeholder(MockTensor):
    """The facts of a tensor that the compiler needs, without its memory."""

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
