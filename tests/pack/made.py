"""Packs for tests, with kernels that were never compiled."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritune.pack.contents import Compiler, PackedBuild, Section, code_of, compiler_here
from tritune.pack.entries import Entry, keep_entry, kept_entry
from tritune.pack.file import write_pack
from tritune.space import Config
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

TARGET = Target.parse("cuda:80")
RMS_NORM = WORKLOADS["rms_norm"]


@dataclass(frozen=True)
class Made:
    """Stands for a compiled kernel."""

    key: str
    kernel: bytes
    name: str = "rms_norm_kernel"
    extension: str = "cubin"

    def metadata_text(self) -> str:
        return json.dumps({"hash": self.key, "shared": 0})


KERNELS = [Made(f"{number:064x}", bytes([number]) * 500) for number in (1, 2, 3)]


def section(**changes: Any) -> Section:
    """Two configs of rms_norm, as this tritune would pack them."""
    problem = RMS_NORM.parse("rows=16 columns=512 dtype=float32")
    points = RMS_NORM.kernel.space.on(TARGET.family, TARGET.arch, problem.fields())
    configs = [*points.configs()][:2]
    builds = [
        PackedBuild(config, {"registers": 32}, estimate, (kernel.key,))
        for config, estimate, kernel in zip(configs, (0.5, None), KERNELS, strict=False)
    ]
    made = Section(
        "rms_norm", RMS_NORM.kernel.name, code_of(RMS_NORM.kernel), str(TARGET),
        compiler_here(TARGET), problem.fields(), tuple(builds), (KERNELS[2].key,),
    )  # fmt: skip
    return replace(made, **changes)


def make_pack(path: Path, *sections: Section) -> Path:
    """Write a pack of sections that use the kernels above."""
    folder = path.with_name("parts")
    entries = []
    for kernel in KERNELS:
        entry = kept_entry(folder, keep_entry(folder, kernel))
        assert isinstance(entry, Entry)
        entries.append(entry)
    write_pack(path, sections or [section()], entries, lambda d: (folder / d).read_bytes())
    return path


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> Path:
    """The same pack with other members, and a digest that is right: made to do harm."""
    from tritune.pack import file

    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)
        archive.comment = b" " * file._COMMENT_BYTES
    with path.open("rb+") as opened:
        digest = file._digest(opened, path.stat().st_size - file._COMMENT_BYTES)
        opened.write((file._COMMENT + digest).encode())
    return path


OTHER_COMPILER = Compiler("0.0.1", "0" * 64, "ptxas 1")
OTHER_CONFIG = Config.of(ROWS=3)
