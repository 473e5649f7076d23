"""A pack for another machine, compiler or version of a kernel is refused, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pack.made import OTHER_COMPILER, TARGET, make_pack, section
from tritune.pack.check_usable import sections_for
from tritune.pack.contents import compiler_here
from tritune.pack.entries import PackError
from tritune.pack.file import Pack
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

KERNELS = {name: workload.kernel for name, workload in WORKLOADS.items()}


def opened(tmp_path: Path, **changes: Any) -> Pack:
    return Pack(make_pack(tmp_path / "some.pack", section(**changes)))


def test_a_pack_of_this_tritune_and_compiler_is_accepted(tmp_path: Path) -> None:
    with opened(tmp_path) as pack:
        assert sections_for(pack, TARGET, KERNELS) == [section()]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"code": "0" * 64}, "another version of the kernel rms_norm"),
        ({"compiler": OTHER_COMPILER}, r"compiled by Triton 0\.0\.1, here is"),
        (
            {"compiler": replace(compiler_here(TARGET), backend="another ptxas")},
            "another build of the compiler.*another ptxas",
        ),
        ({"target": "cuda:90"}, "is for cuda:90, the device here is cuda:80"),
        ({"op": "no_such_op"}, "which this tritune does not have"),
    ],
    ids=["kernel", "triton", "backend", "target", "op"],
)
def test_what_differs_is_said(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with opened(tmp_path, **changes) as pack, pytest.raises(PackError, match=says):
        sections_for(pack, TARGET, KERNELS)


def test_sections_for_other_targets_do_not_matter(tmp_path: Path) -> None:
    both = [section(), section(target="cuda:90", compiler=OTHER_COMPILER)]
    with Pack(make_pack(tmp_path / "both.pack", *both)) as pack:
        assert sections_for(pack, TARGET, KERNELS) == [section()]
        with pytest.raises(PackError, match="Triton"):
            sections_for(pack, Target.parse("cuda:90"), KERNELS)


def test_only_the_ops_that_are_asked_for_are_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path) as pack, pytest.raises(PackError, match="has no attention, only: rms_"):
        sections_for(pack, TARGET, KERNELS, ["attention"])
