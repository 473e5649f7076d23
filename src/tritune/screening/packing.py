"""From what screening left to a pack: binaries are kept while they are made, then put together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tritune.pack.contents import PackedBuild, Section, code_of, compiler_here
from tritune.pack.entries import Entry, PackError, keep_entry, kept_entry
from tritune.pack.file import write_pack
from tritune.screening.screen import Screened
from tritune.screening.sources import catching, pretending
from tritune.screening.staged import StagedCompiler
from tritune.targets.target import Target
from tritune.tuning.compile.warm_up import warm_up


def parts_folder(pack: Path) -> Path:
    """Where binaries lie until the pack is written; an interrupted screening finds them there."""
    return pack.with_name(f"{pack.name}.parts")


def make_parts_folder(pack: Path) -> Path:
    """The same, made before anything is compiled for it; PackError if the pack has no place."""
    if pack.is_dir():
        raise PackError(f"{pack} is a folder, and a pack is a file: give it a name in there")
    folder = parts_folder(pack)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackError(f"the pack {pack} cannot be written: {error.strerror}") from None
    return folder


def pack_up(path: Path, found: Sequence[Screened]) -> int:
    """Write what is left of screenings into a pack, and drop its parts; how many configs it has."""
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
    subject = screened.subject
    kernel = subject.workload.kernel
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
        subject.workload.name,
        kernel.name,
        code_of(kernel),
        str(subject.target),
        compiler_here(subject.target),
        subject.problem.fields(),
        tuple(builds),
        tuple(_support(subject.target, folder)),
    )


def _support(target: Target, folder: Path) -> list[str]:
    """The kernel that every worker process takes through Triton before its clock runs."""
    compiler = StagedCompiler(target)
    with pretending(target), catching() as sources:
        warm_up(launching=False)
    return [keep_entry(folder, compiler.compile(source)) for source in sources]
