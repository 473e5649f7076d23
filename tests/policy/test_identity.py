"""When results may be reused: the same code, helpers and compiler, whatever the configs."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

import tritune
from tests.cpu import programs
from tests.policy.stored import CPU
from tritune.cpu import compiler
from tritune.kernels.identity import cache_identity, compiler_identity, identity
from tritune.kernels.kernel import Kernel
from tritune.kernels.rms_norm import KERNEL
from tritune.space import Parameter, Space
from tritune.targets.device import target_of
from tritune.targets.target import Target

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def helper(x):
    return x * {factor}

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, helper(tl.load(x + at)))
"""


def kernel_with(folder: Path, factor: int) -> Kernel:
    """A kernel that differs from the others in a helper that is not among its functions."""
    path = folder / f"kernel_{factor}.py"
    path.write_text(SOURCE.format(factor=factor))
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dataclasses.replace(KERNEL, functions=(module.kernel,))


def test_a_changed_helper_is_other_code(tmp_path: Path) -> None:
    target = target_of(CPU)
    two, again, three = (kernel_with(tmp_path, factor) for factor in (2, 2, 3))
    assert identity(two, target) == identity(again, target)
    assert identity(two, target) != identity(three, target)


def test_a_larger_space_is_the_same_code() -> None:
    larger = dataclasses.replace(KERNEL, space=Space((Parameter("ROWS", (1, 2, 3)),)))
    assert identity(larger, target_of(CPU)) == identity(KERNEL, target_of(CPU))


def test_code_for_another_target_is_other_code_and_needs_no_device() -> None:
    targets = [target_of(CPU), *map(Target.parse, ("cuda:80", "cuda:90", "hip:gfx942"))]
    assert len({identity(KERNEL, target) for target in targets}) == len(targets)


IDENTITIES = """
from tritune.kernels.identity import cache_identity, identity
from tritune.kernels.rms_norm import KERNEL
from tritune.targets.target import Target

target = Target.parse("cpu:x86-64-v3")
print(identity(KERNEL, target), cache_identity(target).split("-")[0])
"""


def test_a_comment_in_the_backend_makes_new_objects_but_keeps_stored_results(
    tmp_path: Path,
) -> None:
    copy = tmp_path / "edited" / "tritune"
    shutil.copytree(Path(tritune.__file__).parent, copy)
    with open(copy / "cpu" / "lower" / "llvm.py", "a") as source:
        source.write("# A comment.\n")
    here = programs.check(programs.run(tmp_path, IDENTITIES)).split()
    edited = programs.check(programs.run(tmp_path, IDENTITIES, PYTHONPATH=str(copy.parent))).split()
    assert edited[0] == here[0]
    assert edited[1] != here[1]


def test_another_version_of_code_generation_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.parse("cpu:x86-64-v3")
    both = compiler_identity, cache_identity
    before = [function.__wrapped__(target) for function in both]
    monkeypatch.setattr(compiler, "CODE_GENERATION", compiler.CODE_GENERATION + 1)
    after = [function.__wrapped__(target) for function in both]
    assert all(one != other for one, other in zip(before, after, strict=True))
