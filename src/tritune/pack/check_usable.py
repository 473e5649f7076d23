"""Checking that a pack can be used on this machine.

`file.py` and `entries.py` check that the file is whole, `contents.py` its format. This module
checks target, Triton, compiler and kernels, `workloads/tuning_from_pack.py` the problems.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tritune.kernels.kernel import Kernel
from tritune.pack.contents import Section, code_of, compiler_here
from tritune.pack.entries import PackError
from tritune.pack.file import Pack
from tritune.targets.target import Target


def sections_for(
    pack: Pack, target: Target, kernels: Mapping[str, Kernel], ops: Collection[str] = ()
) -> list[Section]:
    """Return the sections of a pack for a target, and for these ops if any are named.

    `kernels` are those of this tritune, by op. PackError where the pack is of another target,
    another compiler or another version of a kernel: its binaries would not be what runs here.
    """
    found = [section for section in pack.sections if section.target == str(target)]
    if not found:
        targets = ", ".join(sorted({section.target for section in pack.sections})) or "nothing"
        raise PackError(f"{pack.path} is for {targets}, the device here is {target}")
    if ops:
        found = [section for section in found if section.op in ops]
        if not found:
            packed = ", ".join(sorted({section.op for section in pack.sections}))
            raise PackError(f"{pack.path} has no {', '.join(ops)}, only: {packed}")
    for section in found:
        _check(section, target, kernels, pack)
    return found


def _check(section: Section, target: Target, kernels: Mapping[str, Kernel], pack: Pack) -> None:
    there, here = section.compiler, compiler_here(target)
    remedy = "make the pack again with what is installed here"
    if there.triton != here.triton:
        raise PackError(
            f"{pack.path} was compiled by Triton {there.triton}, here is {here.triton}: {remedy}"
        )
    if there != here:
        raise PackError(
            f"{pack.path} was compiled for {target} by another build of the compiler "
            f"({there.backend[:60]}, here is {here.backend[:60]}): {remedy}"
        )
    kernel = kernels.get(section.op)
    if kernel is None or kernel.name != section.kernel:
        raise PackError(
            f"{pack.path} is for the op {section.op!r:.40}, which this tritune does not have"
        )
    if section.code != code_of(kernel):
        raise PackError(
            f"{pack.path} was made from another version of the kernel {kernel.name} "
            f"({section.code[:12]:.12}, here is {code_of(kernel)[:12]}): {remedy}"
        )
