"""The slots that a kernel's code reads its arguments from: 8 bytes each, little endian."""

from __future__ import annotations

import ctypes
import re
import struct
from dataclasses import dataclass
from typing import Any

from tritune.errors import LaunchError

# struct's code for a value of each type, padded to a slot.
_CODES = {
    "i1": "?7x", "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q",
    "u1": "?7x", "u8": "B7x", "u16": "H6x", "u32": "I4x", "u64": "Q",
    "fp16": "e6x", "bf16": "H6x", "fp32": "f4x", "f32": "f4x", "fp64": "d",
}  # fmt: skip
_POINTER = "Q"


@dataclass(frozen=True)
class Slot:
    """One slot: the type of its value, and where the value is found."""

    type: str
    #: A Python expression over the launcher's parameters a0, a1, ...
    expression: str
    #: The index of the kernel's argument that it belongs to.
    argument: int

    @property
    def is_pointer(self) -> bool:
        return self.type.startswith("*")

    @property
    def code(self) -> str:
        return _POINTER if self.is_pointer else _CODES[self.type]

    def value(self) -> str:
        """Return a Python expression for what is packed on the fast path."""
        if self.is_pointer:
            return f"{self.expression}.data_ptr()"
        return f"bf16({self.expression})" if self.type == "bf16" else self.expression


def slots(signature: dict[Any, Any]) -> list[Slot]:
    """Return the slots for a signature, in the order of the code's arguments."""
    found: list[Slot] = []
    for index, type_ in enumerate(signature.values()):
        _expand(type_, f"a{index}", index, found)
    return found


def _expand(type_: Any, expression: str, argument: int, found: list[Slot]) -> None:
    if isinstance(type_, (tuple, list)):
        for position, item in enumerate(type_):
            _expand(item, f"{expression}[{position}]", argument, found)
    elif type_ == "constexpr":
        return
    elif type_.startswith("tensordesc"):
        _expand_descriptor(type_, expression, argument, found)
    elif type_.startswith("*") or type_ in _CODES:
        found.append(Slot(type_, expression, argument))
    else:
        raise LaunchError(f"argument {argument}: the CPU backend takes no argument of type {type_}")


def _expand_descriptor(type_: str, expression: str, argument: int, found: list[Slot]) -> None:
    """Add the slots of a tensor descriptor, as Triton rewrites it into pointers.

    First what the descriptor became, then the shape and strides that Triton's front end adds.
    """
    match = re.match(r"tensordesc<([^\[>]*)\[([^\]]*)\]", type_)
    if match is None:
        raise LaunchError(f"argument {argument}: the CPU backend takes no descriptor {type_}")
    dtype, block = match.groups()
    rank = block.count(",") + 1
    found.append(Slot(f"*{dtype}", f"{expression}.base", argument))
    shape = [f"{expression}.shape[{i}]" for i in range(rank)]
    strides = [f"{expression}.strides[{i}]" for i in range(rank)]
    flags = [f"({expression}.padding == 'nan')", f"{expression}.round_f32_to_tf32"]
    found.extend(Slot("i64", each, argument) for each in (*shape, *strides))
    found.extend(Slot("i1", each, argument) for each in flags)
    found.extend(Slot("i32", each, argument) for each in shape)
    found.extend(Slot("i64", each, argument) for each in strides)


def bf16(value: float) -> int:
    """Return the bits of a float rounded to bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    if value != value:
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def convert(slot: Slot, name: str, arguments: tuple[Any, ...]) -> Any:
    """Return the value to pack into a slot, converted and checked."""
    value = eval(slot.expression, {f"a{i}": each for i, each in enumerate(arguments)})
    try:
        if slot.is_pointer:
            return _address(name, value)
        if slot.type[0] in "fb":
            return _float(slot.type, value)
        struct.pack("<" + slot.code, value)
    except (struct.error, TypeError, OverflowError, ValueError):
        raise LaunchError(f"argument {name}: {value!r} cannot be passed as {slot.type}") from None
    return value


def _address(name: str, value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & (2**64 - 1)
    if not hasattr(value, "data_ptr"):
        raise LaunchError(
            f"argument {name}: a {type(value).__name__} has no memory that a kernel could use; "
            "pass a torch tensor"
        )
    device = getattr(value, "device", None)
    kind = getattr(device, "type", "cpu")
    if kind != "cpu":
        remedy = (
            "it has no data"
            if kind == "meta"
            else f"pass {name}.cpu(), or make {kind} the active device with tritune.cpu.disable()"
        )
        raise LaunchError(
            f"argument {name} is on device {device}, but the kernel runs on the CPU: {remedy}"
        )
    return int(value.data_ptr())


def _float(type_: str, value: Any) -> float | int:
    number = float(value)
    # C's conversions overflow to infinity, where struct refuses.
    if type_ == "fp64":
        return number
    single = ctypes.c_float(number).value
    if type_ == "bf16":
        return bf16(single)
    if type_ == "fp16" and abs(number) >= 65520.0:
        return float("inf") if number > 0 else float("-inf")
    return single if type_ in ("fp32", "f32") else number
