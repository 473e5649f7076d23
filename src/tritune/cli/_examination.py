"""The findings of `tritune doctor` as plain data. The field names are the JSON's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """Something wrong. An error prevents work, a warning makes it slow or surprising."""

    severity: Literal["error", "warning"]
    what: str
    remedy: str


class Problems(list[Problem]):
    """The problems found so far."""

    def error(self, what: str, remedy: str) -> None:
        self.append(Problem("error", what, remedy))

    def warning(self, what: str, remedy: str) -> None:
        self.append(Problem("warning", what, remedy))


@dataclass(frozen=True)
class Device:
    """A CPU or GPU of this machine. Fields that do not apply to its kind are None or empty."""

    kind: str
    name: str
    target: str | None = None
    cores: int | None = None
    threads: int | None = None
    usable_threads: int | None = None
    memory_bytes: int | None = None
    triple: str | None = None
    llvm_cpu: str | None = None
    vector_bits: int | None = None
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackendState:
    """A backend that Triton has found. `reason` says why it is inactive."""

    name: str
    active: bool
    in_use: bool
    reason: str | None


@dataclass(frozen=True)
class Threads:
    count: int
    source: str


@dataclass(frozen=True)
class Cache:
    name: str
    path: str
    source: str
    exists: bool
    writable: bool
    bytes: int


@dataclass(frozen=True)
class SelfTest:
    """A small kernel, compiled and run in a process of its own."""

    device: str
    passed: bool
    error: str | None


@dataclass(frozen=True)
class OptionalPackage:
    """A package that an integration needs. `reason` says why it is not used."""

    name: str
    version: str | None
    serves: str
    usable: bool
    reason: str | None


@dataclass(frozen=True)
class Examination:
    versions: dict[str, str | None]
    devices: tuple[Device, ...]
    backends: tuple[BackendState, ...]
    threads: Threads | None
    caches: tuple[Cache, ...]
    self_test: SelfTest | None
    optional: tuple[OptionalPackage, ...]
    problems: tuple[Problem, ...]

    @property
    def healthy(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)
