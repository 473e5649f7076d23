"""Read AMD's binaries: a note in MessagePack holds the metadata of the kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tritune.targets.binary.elf import NOTES, Section, sections
from tritune.targets.binary.facts import BinaryError, BinaryFacts

_WHAT = "this hsaco"
#: A note begins with the sizes of its owner's name and of its content, and its type.
_NOTE = struct.Struct("<III")


def read_hsaco(binary: bytes, shared_bytes: int) -> BinaryFacts:
    """Return what the kernel of a hsaco needs. `shared_bytes` are those that the launch adds."""
    found = sections(binary, _WHAT)
    kernel = _metadata(found)
    return BinaryFacts(
        # Where vector and accumulation registers share a file this is the sum of both.
        registers=_number(kernel, ".vgpr_count"),
        # Registers that are kept in others' lanes are counted as spills too, but cost no memory.
        spill_bytes=_number(kernel, ".private_segment_fixed_size"),
        shared_bytes=_number(kernel, ".group_segment_fixed_size") + shared_bytes,
        code_bytes=sum(section.size for section in found if section.is_code),
    )


def _metadata(found: Sequence[Section]) -> Mapping[str, Any]:
    """Return the metadata of the only kernel."""
    for section in found:
        before, owner, rest = section.content[_NOTE.size :].partition(b"AMDGPU\0\0")
        if section.type == NOTES and owner:
            try:
                _, size, _ = _NOTE.unpack_from(section.content, len(before))
                return dict(msgspec.msgpack.decode(rest[:size])["amdhsa.kernels"][0])
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise BinaryError(f"{_WHAT} is damaged: {error}") from None
    raise BinaryError(f"{_WHAT} has no note with the metadata of a kernel")


def _number(kernel: Mapping[str, Any], name: str) -> int:
    value = kernel.get(name)
    if not isinstance(value, int):
        raise BinaryError(f"{_WHAT} does not tell its {name}")
    return value
