"""Tell whether two binaries have the same code.

Debug sections name lines of source and times of files, so binaries with the same code differ.
"""

from __future__ import annotations

import hashlib

from tritune.targets.binary.elf import sections
from tritune.targets.binary.facts import BinaryError

_DEBUG = ("debug", "nv_debug")
_LINKS = ("rela", "rel")


def code_digest(binary: bytes) -> str:
    """Return a digest of a binary without its debug sections."""
    try:
        found = sections(binary, "the binary")
    except BinaryError:
        return hashlib.sha256(binary).hexdigest()
    digest = hashlib.sha256()
    for section in found:
        if not _is_for_debuggers(section.name):
            size = f"{section.type} {section.flags} {section.size}"
            digest.update(f"{section.name}\0{size}\0".encode())
            digest.update(hashlib.sha256(section.content).digest())
    return digest.hexdigest()


def _is_for_debuggers(name: str) -> bool:
    """Return whether a section is for debuggers, as .debug_line and .rela.debug_frame are."""
    # From sm_100 on, ptxas keeps a second form of the code, with its own sections for debuggers.
    parts = name.strip(".").removeprefix("nv.merc.").split(".")
    named = parts[1] if parts[0] in _LINKS and len(parts) > 1 else parts[0]
    # Names of sections are content as well, and those of debug sections come with them.
    return named.startswith(_DEBUG) or named == "shstrtab"
