"""Read the facts of what Triton compiled, in less than a millisecond."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.targets.binary.cubin import read_cubin
from tritune.targets.binary.facts import BinaryError, BinaryFacts
from tritune.targets.binary.host import read_object
from tritune.targets.binary.hsaco import read_hsaco
from tritune.targets.target import Target

#: What Triton calls the binary of each family.
KINDS = {"cuda": "cubin", "hip": "hsaco", "cpu": "obj"}


def read_binary(
    target: Target, asm: Mapping[str, Any] | bytes, shared_bytes: int = 0
) -> BinaryFacts:
    """Return what a kernel's binary needs. `asm` is the binary, or Triton's dictionary of stages.

    Triton's kernels declare no shared memory of their own: what the launch gives them is in the
    metadata (`metadata.shared`) and has to be said here.
    """
    binary = binary_of(target, asm)
    if target.family == "cuda":
        return read_cubin(binary, shared_bytes)
    if target.family == "hip":
        return read_hsaco(binary, shared_bytes)
    return read_object(binary)


def read_compiled(compiled: Any) -> BinaryFacts:
    """Return the facts of what `triton.compile` or a launch with `warmup=True` returns."""
    metadata = compiled.metadata
    target = Target(metadata.target.backend, metadata.target.arch)
    return read_binary(target, compiled.asm, metadata.shared)


def binary_of(target: Target, asm: Mapping[str, Any] | bytes) -> bytes:
    """Return the binary among a kernel's stages."""
    if isinstance(asm, bytes):
        return asm
    kind = KINDS[target.family]
    binary = asm.get(kind)
    if not isinstance(binary, bytes):
        raise BinaryError(
            f"there is no {kind} for {target} among the stages: {', '.join(asm) or 'none'}"
        )
    return binary
