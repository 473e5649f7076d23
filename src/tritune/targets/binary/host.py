"""Read the CPU's objects, as the CPU backend keeps them."""

from __future__ import annotations

from tritune.errors import DamagedObjectError
from tritune.targets.binary.elf import sections
from tritune.targets.binary.facts import BinaryError, BinaryFacts

_WHAT = "this object"


def read_object(binary: bytes) -> BinaryFacts:
    """Return the size of an object's code. A CPU's registers are all a thread's."""
    from tritune.cpu.launch.loader import unseal

    try:
        code = unseal(binary)
    except DamagedObjectError:
        raise BinaryError(f"{_WHAT} is damaged: its digest is another") from None
    found = sections(code, _WHAT)
    return BinaryFacts(
        registers=None,
        spill_bytes=None,
        shared_bytes=0,
        code_bytes=sum(section.size for section in found if section.is_code),
    )
