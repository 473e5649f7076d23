"""The sections of an ELF file.

Enough for kernels' binaries, in microseconds, and for damaged files too: LLVM's reader, which
llvmlite offers, ends the process at one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tritune.targets.binary.facts import BinaryError

_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
#: Types of sections: unused, and without content in the file.
_NULL, _NOBITS = 0, 8
#: The type of sections with notes.
NOTES = 7
_EXECUTABLE = 4


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    flags: int
    #: In bytes, also of a section without content in the file.
    size: int
    content: bytes

    @property
    def is_code(self) -> bool:
        return bool(self.flags & _EXECUTABLE)


def sections(binary: bytes, what: str) -> list[Section]:
    """Return the sections of a file.

    Raise BinaryError, with `what` for the file, if it is damaged or not ELF.
    """
    if not binary.startswith(_MAGIC_64_LITTLE):
        raise BinaryError(f"{what} is damaged: {len(binary)} bytes that are no 64-bit ELF file")
    try:
        return _sections(binary)
    except (struct.error, IndexError, ValueError) as error:
        raise BinaryError(f"{what} is damaged: {error}") from None


def _sections(binary: bytes) -> list[Section]:
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
    rows = [_SECTION.unpack_from(binary, table + i * entry_size) for i in range(count)]
    names = _content(binary, rows[names_index])
    found = []
    for row in rows:
        name = names[row[0] : names.index(b"\0", row[0])].decode()
        content = b"" if row[1] in (_NULL, _NOBITS) else _content(binary, row)
        found.append(Section(name, row[1], row[2], row[5], content))
    return found


def _content(binary: bytes, row: tuple[int, ...]) -> bytes:
    offset, size = row[4], row[5]
    if offset + size > len(binary):
        raise ValueError(f"a section ends at byte {offset + size}, the file at {len(binary)}")
    return binary[offset : offset + size]
