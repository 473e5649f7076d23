"""The LLVM IR that the CPU backend makes of the corpus, before LLVM's optimiser.

Run as a program, it writes the IR into a folder; with `PYTHONPATH=REVISION/src` that is the IR of
another revision.
"""

from __future__ import annotations

import gc
import hashlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.golden import corpus
from tritune.cpu import lower, ttir
from tritune.cpu.features import Cpu
from tritune.cpu.options import CodeOptions

_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"

#: Written out, because what `features.resolve` returns depends on the host.
CPUS = {
    "x86-64-v2": Cpu(_X86, "x86-64-v2", "", 128),
    "x86-64-v3": Cpu(_X86, "x86-64-v3", "", 256),
    "x86-64-v4": Cpu(_X86, "x86-64-v4", "", 512),
    "znver4": Cpu(_X86, "znver4", "+avx512bf16,+avx512f,+avx512vl", 512),
    "aarch64": Cpu(_ARM, "generic", "", 128),
}
#: On how many CPUs a kernel is lowered, by the most lines that it has: large ones take seconds.
_HOW_MANY = ((150, 5), (250, 3), (400, 2), (sys.maxsize, 1))


def cpus_for(entry: corpus.Entry) -> list[str]:
    """Return the CPUs that an entry is lowered for, dealt out by its name."""
    lines = entry.ttir.count("\n")
    count = next(count for most, count in _HOW_MANY if lines <= most)
    first = zlib.crc32(entry.name.encode())
    return sorted(list(CPUS)[(first + number) % len(CPUS)] for number in range(count))


def llvm_ir(entry: corpus.Entry, cpu: Cpu) -> str:
    """Lower an entry for a CPU."""
    enabled = gc.isenabled()
    gc.disable()  # it would look at all of the IR again and again
    try:
        module = ttir.parse(entry.ttir)
        metadata = {"name": module.entry.name, "shared": 1, "asserts": []}
        return str(lower.lower(module, CodeOptions(**entry.options), cpu, metadata))
    finally:
        if enabled:
            gc.enable()


def without_names(text: str) -> str:
    """Return LLVM IR with numbers for the names of values and blocks, which change no code."""
    return "\ndefine".join(map(_numbered, text.split("\ndefine")))


def _numbered(function: str) -> str:
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return numbers.setdefault(name, f"%{len(numbers)}") + (":" if found[2] else "")

    return re.sub(r'%"([^"]*)"|^"?([^\s":]+)"?:', number, function, flags=re.MULTILINE)


def summary(text: str) -> str:
    """Return what is stored of a text: its digest, and its size to read."""
    digest = hashlib.sha256(without_names(text).encode()).hexdigest()
    return f"{digest[:16]}, {text.count(chr(10))} lines"


def summaries(entry: corpus.Entry) -> dict[str, str]:
    """Return what is stored of an entry, by CPU."""
    return {name: summary(llvm_ir(entry, CPUS[name])) for name in cpus_for(entry)}


def all_summaries(entries: Sequence[corpus.Entry]) -> Mapping[str, Mapping[str, str]]:
    """Return the summaries of all entries, made by as many processes as there are cores."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = pool.map(summaries, entries)
        return dict(zip((entry.name for entry in entries), found, strict=True))


def write(folder: Path, names: str) -> None:
    """Write the IR of the entries whose names contain a text into a folder."""
    for entry in corpus.read():
        for name in cpus_for(entry):
            if names in entry.name:
                path = folder / f"{entry.name}.{name}.ll"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(llvm_ir(entry, CPUS[name]))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
