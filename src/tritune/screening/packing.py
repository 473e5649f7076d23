"""Writing the configs that are left into a pack; their binaries are kept while they are made."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tritune.pack.contents import PackedBuild, Section, code_of, compiler_here
from tritune.pack.entries import Entry, PackError, keep_entry, kept_entry
from tritune.pack.file import write_pack
from tritune.screening.capture import absent_device, captured_launches
from tritune.screening.screen import Screened
from tritune.screening.staged import StagedCompiler
from tritune.targets.target import Target
from tritune.tuning.compile.warm_up import warm_up


def parts_folder(pack: Path) -> Path:
    """Return the folder of the binaries until the pack is written; a resumed screening needs it."""
    return pack.with_name(f"{pack.name}.parts")


def make_parts_folder(pack: Path) -> Path:
    """Create that folder before anything is compiled; PackError if the pack cannot be written."""
    if pack.is_dir():
        raise PackError(f"{pack} is a folder, and a pack is a file: give it a name in there")
    folder = parts_folder(pack)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackError(f"the pack {pack} cannot be written: {error.strerror}") from None
    return folder


def pack_up(path: Path, found: Sequence[Screened]) -> int:
    """Write what screenings left into a pack, delete its parts; return its number of configs."""
    folder = parts_folder(path)
    sections = [_section(screened, folder) for screened in found]
    entries: dict[str, Entry] = {}
    for section in sections:
        for key in section.kernel_keys():
            entry = kept_entry(folder, key)
            assert entry is not None, key
            entries[key] = entry
    write_pack(path, sections, list(entries.values()), lambda d: (folder / d).read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    return sum(len(section.builds) for section in sections)


def _section(screened: Screened, folder: Path) -> Section:
    task = screened.task
    kernel = task.workload.kernel
    builds = [
        PackedBuild(
            each.config,
            screened.builds[each.config].facts,
            each.estimate_ms,
            tuple(screened.entries[each.config]),
        )
        for each in screened.packed
    ]
    return Section(
        task.workload.name,
        kernel.name,
        code_of(kernel),
        str(task.target),
        compiler_here(task.target),
        task.problem.fields(),
        tuple(builds),
        tuple(_support(task.target, folder)),
    )


def _support(target: Target, folder: Path) -> list[str]:
    """Compile the kernel that every worker process launches first; return keys of its entries."""
    compiler = StagedCompiler(target)
    with absent_device(target), captured_launches() as sources:
        warm_up(launching=False)
    return [keep_entry(folder, compiler.compile(source)) for source in sources]
