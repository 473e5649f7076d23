"""Read NVIDIA's binaries. Registers and stack are attributes in sections named `.nv.info`, which
take microseconds to read; the disassembler, which comes with Triton, takes a second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tritune.targets.binary.elf import Section, sections
from tritune.targets.binary.facts import BinaryError, BinaryFacts

_WHAT = "this cubin"
#: Attributes of a function: a symbol's index, then a number.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
#: How an attribute's value is stored: with a size of its own, or in the two bytes after its name.
_SIZED = 4
#: Shared memory of each block that is the system's.
RESERVED_BYTES = 1024


def read_cubin(binary: bytes, shared_bytes: int) -> BinaryFacts:
    """Return what the kernel of a cubin needs. `shared_bytes` are those that the launch adds."""
    found = sections(binary, _WHAT)
    values: dict[int, list[int]] = {_REGISTERS: [], _FRAME_BYTES: []}
    for section in found:
        if section.name == ".nv.info":
            for name, value in _attributes(section.content):
                if name in values:
                    values[name].append(struct.unpack_from("<I", value, 4)[0])
    if not values[_REGISTERS]:
        raise BinaryError(f"{_WHAT} has no kernel whose registers are known")
    return BinaryFacts(
        # A function that is called counts too: the launch provides for the largest.
        registers=max(values[_REGISTERS]),
        spill_bytes=max(values[_FRAME_BYTES], default=0),
        shared_bytes=_static_shared(found) + shared_bytes,
        code_bytes=sum(s.size for s in found if s.name.startswith(".text.")),
    )


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, name, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED:
            if at + size > len(data) or size < 4:
                raise BinaryError(f"{_WHAT} is damaged: an attribute is longer than its section")
            value = data[at : at + size]
            at += size
            if size >= 8:
                yield name, value


def _static_shared(found: list[Section]) -> int:
    """Return the shared memory that the code declares.

    From sm_90 on it includes what is reserved for the system, which `occupancy` adds.
    """
    sizes = {s.name: s.size for s in found if s.name.startswith(".nv.shared.")}
    reserved = [name for name in sizes if name.startswith(".nv.shared.reserved")]
    declared = sum(size for name, size in sizes.items() if name not in reserved)
    return max(0, declared - RESERVED_BYTES) if reserved else declared
