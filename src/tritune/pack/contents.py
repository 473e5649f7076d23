"""What is in a pack: sections, one for each problem of an op on a target, and compiled kernels."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.kernels.identity import cache_identity
from tritune.kernels.kernel import Kernel
from tritune.pack.entries import Entry, PackError
from tritune.space import Config
from tritune.targets.target import Target

FORMAT, VERSION = "tritune pack", 1


@dataclass(frozen=True)
class Compiler:
    """Everything that made the binaries beside the kernel's code."""

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
    estimate_ms: float | None
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
        """The keys of all entries that it needs, each once."""
        used = [key for build in self.builds for key in build.entries]
        return list(dict.fromkeys([*self.support, *used]))


def code_of(kernel: Kernel) -> str:
    """A digest of a kernel's own code, whatever compiles it."""
    keys = "\0".join(function.cache_key for function in kernel.functions)
    return hashlib.sha256(keys.encode()).hexdigest()


@functools.cache
def compiler_here(target: Target) -> Compiler:
    """The compiler for a target in this process."""
    import triton
    from triton.runtime.cache import triton_key

    front_end = hashlib.sha256(triton_key().encode()).hexdigest()
    return Compiler(triton.__version__, front_end, cache_identity(target))


def to_json(sections: Sequence[Section], entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "sections": [_section_to_json(section) for section in sections],
        "entries": [entry.to_json() for entry in entries],
    }


def from_json(document: Any) -> tuple[list[Section], dict[str, Entry]]:
    """The sections and entries of a document; PackError where it is not what `to_json` gave."""
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r:.40}")
        if document["version"] != VERSION:
            raise PackError(
                f"the pack has version {document['version']!r:.20} of the format, this tritune "
                f"reads {VERSION}: make the pack again, or install the tritune that made it"
            )
        entries = {entry["key"]: Entry.from_json(entry) for entry in document["entries"]}
        sections = [_section_of(section) for section in document["sections"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackError(f"the pack's contents are not what tritune writes: {error}") from None
    for section in sections:
        missing = [key for key in section.kernel_keys() if key not in entries]
        if missing:
            raise PackError(f"the pack lacks {len(missing)} kernels that it lists: {missing[0]}")
    return sections, entries


def _section_to_json(section: Section) -> dict[str, Any]:
    return {
        **vars(section),
        "compiler": vars(section.compiler),
        "problem": dict(section.problem),
        "builds": [
            {
                "config": build.config.to_json(),
                "facts": dict(build.facts),
                "estimate_ms": build.estimate_ms,
                "entries": list(build.entries),
            }
            for build in section.builds
        ],
        "support": list(section.support),
    }


def _section_of(values: Mapping[str, Any]) -> Section:
    texts = {name: _text(values[name]) for name in ("op", "kernel", "code", "target")}
    compiler = Compiler(**{n: _text(values["compiler"][n]) for n in Compiler.__annotations__})
    builds = tuple(_build_of(build) for build in values["builds"])
    support = tuple(map(_text, values["support"]))
    return Section(
        **texts, compiler=compiler, problem=dict(values["problem"]), builds=builds, support=support
    )


def _build_of(values: Mapping[str, Any]) -> PackedBuild:
    estimate = values["estimate_ms"]
    if estimate is not None and not (isinstance(estimate, float) and math.isfinite(estimate)):
        raise ValueError(f"an estimate of {estimate!r:.20}")
    return PackedBuild(
        Config.from_json(values["config"]),
        dict(values["facts"]),
        estimate,
        tuple(map(_text, values["entries"])),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} where text belongs")
    return value
