"""The types that are printed beside operands, and those that their definitions gave."""

from __future__ import annotations

from tritune.cpu.ir import Type, Value
from tritune.cpu.ttir.literals import Malformed

#: The type of a value that is used in an earlier block than the one that defines it, until then.
UNKNOWN = Type("?")


def check(values: list[Value], types: list[Type]) -> None:
    """Compare operands with the types printed for them; learn those of values not defined yet."""
    if len(values) != len(types):
        raise Malformed(f"it has {len(values)} operands, but {len(types)} types for them")
    for value, type in zip(values, types, strict=True):
        if value.type is not type and value.type != type:
            if value.type is not UNKNOWN:
                raise Malformed(f"%{value.name} is {value.type}, but is used as {type}")
            value.type = type
