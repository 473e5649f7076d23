"""When two binaries are the same code.

A binary also tells debuggers which lines of source it was made from, and when those files were
written: that differs where the code does not.
"""

from __future__ import annotations

import hashlib

from tritune.targets.binary.elf import sections
from tritune.targets.binary.facts import BinaryError

_DEBUG = ("debug", "nv_debug")
_LINKS = ("rela", "rel")


def code_digest(binary: bytes) -> str:
    """A digest of everything in a binary but what is there for debuggers."""
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
    """Whether a section, such as .debug_line or .rela.debug_frame, takes no part in running."""
    parts = name.strip(".").split(".")
    named = parts[1] if parts[0] in _LINKS and len(parts) > 1 else parts[0]
    # Names of sections are content as well, and those of debug sections come with them.
    return named.startswith(_DEBUG) or named == "shstrtab"
