"""Targets: architectures to compile for, written `cuda:90`, `hip:gfx942`, `cpu:x86-64-v4`."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.errors import TrituneError, nearest
from tritune.space import FAMILIES


class TargetError(TrituneError):
    """A text names no known target, or a device is not there."""


@dataclass(frozen=True)
class Target:
    family: str
    #: A compute capability (90) for cuda; a name for the others.
    arch: int | str

    @staticmethod
    def parse(text: str) -> Target:
        family, _, arch = text.partition(":")
        meant = "" if family in FAMILIES else nearest(family, FAMILIES)
        if family not in FAMILIES or not arch or (family == "cuda" and not arch.isdigit()):
            raise TargetError(
                f"{text!r} is no target{meant}: write a family and an architecture, "
                "such as cuda:90, hip:gfx942 or cpu:x86-64-v4"
            )
        return Target(family, int(arch) if family == "cuda" else arch)

    def __str__(self) -> str:
        return f"{self.family}:{self.arch}"


def multiplies_bf16(target: Target) -> bool:
    """Return whether a target is a CPU with instructions for products of bfloat16."""
    if target.family != "cpu":
        return False
    from tritune.cpu import features

    return features.resolve(str(target.arch)).multiplies_bf16
