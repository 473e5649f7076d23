"""The values of MLIR's literals: types, symbols, strings, numbers and constants."""

from __future__ import annotations

import re
import struct

from tritune.cpu import floats
from tritune.cpu.ir import BITS, Type

_TENSOR = re.compile(r"tensor<((?:\d+x)+)([^,]+)>")
_POINTER = re.compile(r"!tt\.ptr<(.+?)(?:, \d+)?>")
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")


class Malformed(Exception):
    """Text that cannot be read; becomes a CompileError that says where."""


_type_cache: dict[str, Type] = {}


def read_type(text: str) -> Type:
    known = _type_cache.get(text)
    if known is None:
        # Bounded by the element types and shapes that a process ever compiles.
        known = _type_cache[text] = _new_type(text)
    return known


def _new_type(text: str) -> Type:
    if match := _TENSOR.fullmatch(text):
        elem = read_type(match[2])
        if elem.shape == ():
            return elem.with_shape(tuple(int(d) for d in match[1][:-1].split("x")))
    elif match := _POINTER.fullmatch(text):
        return Type("ptr", (), read_type(match[1]))
    return Type(text)


def read_symbol(token: str) -> str:
    if token[0] != "@":
        raise Malformed(f"expected a symbol, found {token!r}")
    return read_string(token[1:]) if token[1:2] == '"' else token[1:]


def read_string(token: str) -> str:
    """Return the text of a string literal: MLIR escapes bytes as two hexadecimal digits."""
    if token[0] != '"':
        raise Malformed(f"expected a string, found {token!r}")
    body = token[1:-1]
    if "\\" not in body:
        return body
    named = {b"n": b"\n", b"t": b"\t"}

    def unescape(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 16)]) if len(code) == 2 else named.get(code, code)

    return _ESCAPE.sub(unescape, body.encode()).decode(errors="replace")


def read_number(text: str, type: Type) -> int | float:
    """Return a number of a type: floats are rounded to it, hexadecimal digits are its bits."""
    elem = type.elem
    if elem[0] == "i":
        if text in ("true", "false"):
            return int(text == "true")
        return int(text, 0)
    if elem not in _STRUCTS and elem not in floats.FORMATS:
        raise Malformed(f"a literal of type {elem} is not known")
    if text[:2] == "0x":
        return _from_bits(int(text, 16), elem)
    return _round(float(text), elem)


_STRUCTS = {"f32": ("f", "I"), "f64": ("d", "Q")}


def _from_bits(bits: int, elem: str) -> float:
    if elem in floats.FORMATS:
        return floats.from_bits(bits, elem)
    code, integer = _STRUCTS[elem]
    return struct.unpack(f"<{code}", struct.pack(f"<{integer}", bits))[0]


def _round(value: float, elem: str) -> float:
    """Round to `elem`: MLIR prints as many digits as identify a value, not all of them."""
    if elem in floats.FORMATS:
        return floats.from_bits(floats.to_bits(value, elem) % (1 << BITS[elem]), elem)
    return struct.unpack("<f", struct.pack("<f", value))[0] if elem == "f32" else value


def read_dense(body: str, type: Type) -> int | float | list[int | float]:
    """Return the elements of `dense<body>`: the scalar of a splat, else a flat list."""
    if body.startswith('"0x'):
        return _blob(bytes.fromhex(body[3:-1]), type)
    if body.startswith("["):
        words = body.replace("[", " ").replace("]", " ").replace(",", " ").split()
        if len(words) != type.numel:
            raise Malformed(f"{len(words)} elements for {type}")
        return [read_number(w, type) for w in words]
    return read_number(body.strip(), type)


def _blob(data: bytes, type: Type) -> list[int | float]:
    """Return elements that are printed as one string of their bytes, as MLIR does with many."""
    size = type.bits // 8
    if type.elem == "i1" or len(data) != size * type.numel:
        raise Malformed(f"{len(data)} bytes for {type}")
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    if type.is_int:
        return [int.from_bytes(c, "little", signed=True) for c in chunks]
    return [_from_bits(int.from_bytes(c, "little"), type.elem) for c in chunks]
