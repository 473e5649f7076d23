"""What the table of architectures says, in the words of constraints and for default configs."""

from __future__ import annotations

from tritune.targets.limits import known_targets, limits_of

_LIMITS = {target.arch: limits_of(target) for target in known_targets()}


def by_arch(values: dict[int | str, int]) -> str:
    """An expression for what each architecture has; for one that is not known, the least of all."""
    text = str(min(values.values()))
    for value in sorted(set(values.values())):
        archs = tuple(arch for arch, own in values.items() if own == value)
        text = f"{value} if arch in {archs!r} else {text}"
    return f"({text})"


_SHARED = {arch: limits.shared_per_block for arch, limits in _LIMITS.items()}

#: Bytes of shared memory that a block may have.
SHARED_BYTES = by_arch(_SHARED)
#: Registers of a warp's threads together, at most.
WARP_REGISTERS = by_arch(
    {arch: each.warp_size * each.registers_per_thread for arch, each in _LIMITS.items()}
)
#: AMD's architectures with matrix instructions of several widths: those with 64 lanes.
CDNA = tuple(arch for arch, limits in _LIMITS.items() if limits.warp_size == 64)


def shared_bytes(arch: int | str) -> int:
    """`SHARED_BYTES` of an architecture."""
    return _SHARED.get(arch, min(_SHARED.values()))
