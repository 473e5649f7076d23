"""The contents of a pack: a section for each problem of an op on a target, and compiled kernels."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from tritune.kernels.identity import cache_identity
from tritune.kernels.kernel import Kernel
from tritune.pack.entries import Entry, PackError
from tritune.space import Config
from tritune.targets.target import Target

FORMAT, VERSION = "tritune pack", 1


@dataclass(frozen=True)
class Compiler:
    """The compiler that made the binaries."""

    triton: str
    #: Digest of Triton's own code, Python's and the library's.
    front_end: str
    #: What the backend says of itself: the version of ptxas, for one.
    backend: str


@dataclass(frozen=True)
class PackedBuild:
    """One config that is worth measuring."""

    config: Config
    facts: Mapping[str, Any]
    #: By the model that ranked it; None where there was none.
    estimate_ms: Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)] | None
    #: Keys of the kernels that it launches.
    entries: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """The configs for one problem of an op on one target, the most promising first."""

    op: str
    kernel: str
    #: Digest of the kernel's functions and of all that they call.
    code: str
    target: str
    compiler: Compiler
    problem: Mapping[str, Any]
    builds: tuple[PackedBuild, ...]
    #: Keys of kernels that worker processes need whatever they measure.
    support: tuple[str, ...] = ()

    def kernel_keys(self) -> list[str]:
        """Return the keys of all entries that it needs, each once."""
        used = [key for build in self.builds for key in build.entries]
        return list(dict.fromkeys([*self.support, *used]))


def code_of(kernel: Kernel) -> str:
    """Return a digest of a kernel's own code, whatever compiles it."""
    keys = "\0".join(function.cache_key for function in kernel.functions)
    return hashlib.sha256(keys.encode()).hexdigest()


@functools.cache
def compiler_here(target: Target) -> Compiler:
    """Return the compiler for a target in this process."""
    import triton
    from triton.runtime.cache import triton_key

    front_end = hashlib.sha256(triton_key().encode()).hexdigest()
    return Compiler(triton.__version__, front_end, cache_identity(target))


def to_json(sections: Sequence[Section], entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "sections": [_section_to_json(section) for section in sections],
        "entries": msgspec.to_builtins(entries),
    }


def from_json(document: Any) -> tuple[list[Section], dict[str, Entry]]:
    """Return the sections and entries of a document; PackError if `to_json` did not make it."""
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r:.40}")
        if document["version"] != VERSION:
            raise PackError(
                f"the pack has version {document['version']!r:.20} of the format, this tritune "
                f"reads {VERSION}: make the pack again, or install the tritune that made it"
            )
        for build in (build for section in document["sections"] for build in section["builds"]):
            build["config"] = Config.from_json(build["config"])
        sections = msgspec.convert(document["sections"], list[Section])
        entries = {entry.key: entry for entry in msgspec.convert(document["entries"], list[Entry])}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackError(f"the pack's contents are not what tritune writes: {error}") from None
    for section in sections:
        missing = [key for key in section.kernel_keys() if key not in entries]
        if missing:
            raise PackError(f"the pack lacks {len(missing)} kernels that it lists: {missing[0]}")
    return sections, entries


def _section_to_json(section: Section) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(section)
    for build, written in zip(section.builds, fields["builds"], strict=True):
        written["config"] = build.config.to_json()
    return fields
