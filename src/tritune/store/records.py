"""The records of the store: runs, builds, trials and their samples, all frozen.

The annotations are what `document.read` checks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from tritune.space import Config

#: Why a build or a trial failed.
FAILURES = ("compile_error", "out_of_resources", "wrong_result", "timeout", "crash")
#: The stage of a shoot-out in which other processes disturbed too many samples.
UNDECIDED = "undecided"
#: What a time was taken for. "vendor:NAME" is kept with the default config: the vendor's library,
#: timed beside it.
STAGES = ("search", "final", UNDECIDED, "vendor:NAME")

Failure = Annotated[str, Meta(pattern=rf"\A({'|'.join(FAILURES)})\Z")]
Stage = Annotated[str, Meta(pattern=rf"\A({'|'.join(STAGES[:-1])}|vendor:.*)\Z")]
#: A number that the database can hold. Where something is not known, files may have -1.
Count = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Milliseconds = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


@dataclass(frozen=True)
class Task:
    """A kernel, a problem and a device: what is tuned."""

    kernel: str
    #: Digest of the kernel's code, its helper functions and the compiler.
    identity: str
    #: The problem's fields as JSON with sorted keys: see `problem_text`.
    problem: str
    #: The device's fingerprint.
    device: str


@dataclass(frozen=True)
class Run:
    """One tuning run: who measured, with what, when."""

    id: str
    command: str
    #: Versions, settings and the way of measuring.
    environment: Mapping[str, Any]
    started: str  # UTC, ISO 8601


@dataclass(frozen=True)
class Build:
    """One config compiled for one target, or why it could not be."""

    kernel: str
    identity: str
    target: str
    #: Digest of what else decides the binary: argument types, constants, specialisation.
    signature: str
    config: Config
    #: Digest of the binary; empty where the build failed.
    binary: str = ""
    #: Registers, spills, shared memory, code size: whatever the target's binaries tell.
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    failure: Failure | None = None
    message: str = ""


@dataclass(frozen=True)
class Samples:
    """Times of one config, taken in one round of a race."""

    run: str
    #: "search": measured on the way. "final": measured in the shoot-out, against the default.
    #: "undecided": what is left of a shoot-out that other processes disturbed too much.
    stage: Stage
    round: Count
    times_ms: tuple[Milliseconds, ...]


@dataclass(frozen=True)
class Trial:
    """One config tried for one task: samples, or the reason it was refused."""

    task: Task
    config: Config
    run: str
    when: str  # UTC, ISO 8601
    default: bool = False
    failure: Failure | None = None
    message: str = ""
    binary: str = ""
    #: The key of the config whose binary, and so whose samples, this one shares.
    duplicate_of: str | None = None
    samples: tuple[Samples, ...] = ()


@dataclass(frozen=True)
class DeviceFields:
    """A device with its target as text."""

    name: str
    target: str
    cores: Count
    memory_bytes: Count
    driver: str


def problem_text(fields: Mapping[str, Any]) -> str:
    """Return a problem as it is stored: one spelling for one problem."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
