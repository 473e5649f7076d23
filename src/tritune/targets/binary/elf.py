"""As much of the ELF format as kernels' binaries need: sections and notes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tritune.targets.binary.facts import BinaryError

_MAGIC_64_LITTLE = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
#: Types of sections: without content in the file, and notes.
_NOBITS, _NOTES = 8, 7
_EXECUTABLE = 4


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    flags: int
    #: Also of a section that has no content in the file.
    size: int
    content: bytes

    @property
    def is_code(self) -> bool:
        return bool(self.flags & _EXECUTABLE)


def sections(binary: bytes, what: str) -> list[Section]:
    """The sections of a file; BinaryError, which calls it `what`, if it is damaged or no ELF."""
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
        content = b"" if row[1] in (0, _NOBITS) else _content(binary, row)
        found.append(Section(name, row[1], row[2], row[5], content))
    return found


def _content(binary: bytes, row: tuple[int, ...]) -> bytes:
    offset, size = row[4], row[5]
    if offset + size > len(binary):
        raise ValueError(f"a section ends at byte {offset + size}, the file at {len(binary)}")
    return binary[offset : offset + size]


def notes(found: list[Section], what: str) -> Iterator[tuple[str, int, bytes]]:
    """The owner, type and content of every note."""
    for section in found:
        if section.type != _NOTES:
            continue
        data, at = section.content, 0
        try:
            while at < len(data):
                name_size, size, kind = _NOTE.unpack_from(data, at)
                name_at = at + _NOTE.size
                at = name_at + _aligned(name_size)
                yield (
                    data[name_at : name_at + name_size].rstrip(b"\0").decode(),
                    kind,
                    data[at : at + size],
                )
                at += _aligned(size)
        except (struct.error, UnicodeDecodeError) as error:
            raise BinaryError(f"{what} is damaged: {error}") from None


def _aligned(size: int) -> int:
    return (size + 3) & ~3
