"""Read AMD's binaries: a note in MessagePack holds the metadata of the kernel."""

from __future__ import annotations

from tritune.targets.binary.elf import NOTES, sections
from tritune.targets.binary.facts import BinaryError, BinaryFacts

_WHAT = "this hsaco"
#: First bytes of unsigned integers in MessagePack, and their sizes. A smaller one is a number.
_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def read_hsaco(binary: bytes, shared_bytes: int) -> BinaryFacts:
    """Return what the kernel of a hsaco needs. `shared_bytes` are those that the launch adds."""
    found = sections(binary, _WHAT)
    notes = b"".join(section.content for section in found if section.type == NOTES)
    return BinaryFacts(
        # Where vector and accumulation registers share a file this is the sum of both.
        registers=_number(notes, ".vgpr_count"),
        # Registers that are kept in others' lanes are counted as spills too, but cost no memory.
        spill_bytes=_number(notes, ".private_segment_fixed_size"),
        shared_bytes=_number(notes, ".group_segment_fixed_size") + shared_bytes,
        code_bytes=sum(section.size for section in found if section.is_code),
    )


def _number(notes: bytes, name: str) -> int:
    """Return the number behind a name in the metadata, of the first kernel."""
    # A key of a map is its length, in a byte with 0xA0, and its text; the value follows.
    _, key, value = notes.partition(bytes([0xA0 | len(name)]) + name.encode())
    if not key:
        raise BinaryError(f"{_WHAT} has no note that tells its {name}")
    if value and value[0] < 0x80:
        return value[0]
    size = _SIZES.get(value[0], 0) if value else 0
    if not size or len(value) <= size:
        raise BinaryError(f"{_WHAT} is damaged: its {name} is no number")
    return int.from_bytes(value[1 : 1 + size], "big")
