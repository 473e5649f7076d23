"""MessagePack, as far as AMD's metadata uses it: maps, lists, text, numbers, truth values."""

from __future__ import annotations

import struct
from typing import Any

#: First bytes of values of fixed form, and how they are stored.
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
#: First bytes of values with a length, how the length is stored, and what they are.
_LENGTHS = {
    0xC4: (">B", "bytes"), 0xC5: (">H", "bytes"), 0xC6: (">I", "bytes"),
    0xD9: (">B", "text"), 0xDA: (">H", "text"), 0xDB: (">I", "text"),
    0xDC: (">H", "list"), 0xDD: (">I", "list"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip


def decode(data: bytes) -> Any:
    """The value that the bytes hold; ValueError if they are damaged."""
    try:
        value, _ = _value(data, 0)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"damaged metadata: {error}") from None
    return value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 0x100, at
    if first < 0xC0:
        kind, count = _short(first)
        return _many(data, at, kind, count)
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        form = _NUMBERS[first]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if first not in _LENGTHS:
        raise ValueError(f"damaged metadata: no value begins with byte {first:#x}")
    form, kind = _LENGTHS[first]
    (count,) = struct.unpack_from(form, data, at)
    return _many(data, at + struct.calcsize(form), kind, count)


def _short(first: int) -> tuple[str, int]:
    if first < 0x90:
        return "map", first & 0x0F
    if first < 0xA0:
        return "list", first & 0x0F
    return "text", first & 0x1F


def _many(data: bytes, at: int, kind: str, count: int) -> tuple[Any, int]:
    if kind in ("text", "bytes"):
        end = at + count
        if end > len(data):
            raise ValueError("damaged metadata: it ends within a text")
        return (data[at:end].decode() if kind == "text" else data[at:end]), end
    items = []
    for _ in range(2 * count if kind == "map" else count):
        item, at = _value(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), at
