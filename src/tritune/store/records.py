"""What the store keeps: runs, builds, trials and their samples. All frozen, all plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritune.space import Config

#: Why a build or a trial failed.
FAILURES = ("compile_error", "out_of_resources", "wrong_result", "timeout", "crash")


@dataclass(frozen=True)
class Task:
    """One question that tuning answers: the best config of a kernel for a problem on a device."""

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
    seconds: float = 0.0
    failure: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Samples:
    """Times of one config, taken in one round of a race."""

    run: str
    #: "search": measured on the way. "final": measured in the shoot-out, against the default.
    #: "undecided": what is left of a shoot-out that other processes disturbed too much.
    stage: str
    round: int
    times_ms: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """One config tried for one task: samples, or the reason it was refused."""

    task: Task
    config: Config
    run: str
    when: str  # UTC, ISO 8601
    default: bool = False
    failure: str | None = None
    message: str = ""
    binary: str = ""
    #: The key of the config whose binary, and so whose samples, this one shares.
    duplicate_of: str | None = None
    samples: tuple[Samples, ...] = ()


def problem_text(fields: Mapping[str, Any]) -> str:
    """The problem as it is kept: one spelling for one problem."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
