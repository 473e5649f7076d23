"""AMD's binaries: a note holds the metadata of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.targets.binary.elf import notes, sections
from tritune.targets.binary.facts import BinaryError, BinaryFacts
from tritune.targets.binary.msgpack import decode

_WHAT = "this hsaco"
_OWNER, _METADATA = "AMDGPU", 32


def read_hsaco(binary: bytes, shared_bytes: int) -> BinaryFacts:
    """What the kernel of a hsaco takes; the launch adds so much shared memory."""
    found = sections(binary, _WHAT)
    kernel = _kernel(found)
    return BinaryFacts(
        # Where vector and accumulation registers share a file this is the sum of both.
        registers=_number(kernel, ".vgpr_count"),
        # Registers that are kept in others' lanes are counted as spills too, but cost no memory.
        spill_bytes=_number(kernel, ".private_segment_fixed_size"),
        shared_bytes=_number(kernel, ".group_segment_fixed_size") + shared_bytes,
        code_bytes=sum(section.size for section in found if section.is_code),
    )


def _kernel(found: list[Any]) -> Mapping[str, Any]:
    for owner, kind, content in notes(found, _WHAT):
        if owner == _OWNER and kind == _METADATA:
            try:
                kernels = decode(content)["amdhsa.kernels"]
                return dict(kernels[0])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise BinaryError(f"{_WHAT} is damaged: {error}") from None
    raise BinaryError(f"{_WHAT} has no note with the metadata of a kernel")


def _number(kernel: Mapping[str, Any], name: str) -> int:
    value = kernel.get(name)
    if not isinstance(value, int):
        raise BinaryError(f"{_WHAT} does not tell its {name}")
    return value
