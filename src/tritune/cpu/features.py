"""The CPU that code is for: the host, or an architecture by name."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tritune.errors import not_allowed


@dataclass(frozen=True)
class Cpu:
    """A CPU as LLVM names it: its feature list, sorted, and the bits of its widest vector."""

    triple: str
    name: str
    features: str
    vector_bits: int

    @property
    def arch(self) -> str:
        """Return the instruction set, the first part of the triple."""
        return self.triple.split("-", 1)[0]

    def has(self, feature: str) -> bool:
        """Return whether `feature` is listed; LLVM's name for the CPU may imply others."""
        return f"+{feature}" in self.features.split(",")

    @property
    def multiplies_bf16(self) -> bool:
        """Return whether there is an instruction for dot products of pairs of bf16."""
        return self.has("avx512bf16") and self.has("avx512vl")


# Name -> (instruction set, LLVM's name, widest vector, features a host must have to run the code).
# LLVM knows what each level implies; only the host's own feature list is ever spelled out.
_V2 = ("sse4.2", "popcnt")
_V3 = (*_V2, "avx2", "fma", "bmi2", "f16c")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_LEVELS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "x86-64": ("x86_64", "x86-64", 128, ()),
    "x86-64-v2": ("x86_64", "x86-64-v2", 128, _V2),
    "x86-64-v3": ("x86_64", "x86-64-v3", 256, _V3),
    "x86-64-v4": ("x86_64", "x86-64-v4", 512, _V4),
    "aarch64": ("aarch64", "generic", 128, ()),
}


@functools.cache
def host() -> Cpu:
    """Return the CPU that this process runs on."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    present = llvm.get_host_cpu_features()
    features = ",".join(sorted(f"{'+' if on else '-'}{name}" for name, on in present.items()))
    if present.get("avx512f"):
        vector_bits = 512
    elif present.get("avx"):
        vector_bits = 256
    else:
        vector_bits = 128
    return Cpu(triple, llvm.get_host_cpu_name(), features, vector_bits)


#: Other names of this machine's own CPU; torch's compiler leaves the architecture empty.
_HOST = ("host", "")


@functools.cache
def resolve(arch: str) -> Cpu:
    """Return the CPU of `GPUTarget("cpu", arch, 1)`; raise a ValueError that lists those known."""
    here = host()
    if arch in (here.name, *_HOST):
        return here
    if arch not in _LEVELS:
        raise ValueError(not_allowed("unknown CPU architecture", arch, [here.name, *_LEVELS]))
    family, name, vector_bits, _ = _LEVELS[arch]
    return Cpu(_triple(family), name, "", vector_bits)


def why_not_here(arch: str) -> str | None:
    """Return why code for `arch` cannot run on this machine, or None if it can."""
    here = host()
    if arch in (here.name, *_HOST):
        return None
    if arch not in _LEVELS:
        return f"it is for {arch}, this machine is {here.name}"
    family, _, _, needs = _LEVELS[arch]
    if family != here.arch:
        return f"it is for {family}, this machine is {here.arch}"
    missing = [feature for feature in needs if not here.has(feature)]
    return f"this machine lacks {', '.join(missing)}" if missing else None


def _triple(family: str) -> str:
    here = host()
    return here.triple if here.arch == family else f"{family}-unknown-linux-gnu"
