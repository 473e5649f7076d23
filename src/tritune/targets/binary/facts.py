"""The facts of a kernel's binary."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.errors import TrituneError


class BinaryError(TrituneError):
    """A binary that cannot be read, or a tool for it that is missing."""


@dataclass(frozen=True)
class BinaryFacts:
    """The resources of one kernel. None where a CPU's object does not tell."""

    #: Of 32 bits, per thread; on AMD the vector registers, of both kinds together.
    registers: int | None
    #: Bytes of each thread that lie in memory because registers did not suffice.
    spill_bytes: int | None
    #: Bytes per block: what the code declares and what the launch adds.
    shared_bytes: int
    #: Bytes of machine code, without the rest of the file.
    code_bytes: int
