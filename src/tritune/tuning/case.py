"""The interface between the pipeline and what it tunes.

A *case* is one problem with its inputs, in one process. Cases live in worker processes; what
crosses the border is a `CaseSpec`, plain data from which any process makes the same case.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

from tritune.errors import TrituneError
from tritune.space import Config

#: What is timed: a config, or a vendor's function by its name with this prefix.
Entry: TypeAlias = "Config | str"
VENDOR = "vendor:"


@dataclass(frozen=True)
class Expected:
    """The outputs of a correct config: each in higher precision, and by plain torch."""

    reference: Sequence[torch.Tensor]
    plain: Sequence[torch.Tensor]
    #: How many times plain torch's error is allowed.
    slack: float = 2.0


@dataclass(frozen=True)
class Launch:
    """One launch that `run` would make: a compiled kernel and what else the host decides.

    Two configs count as one build where their launches are equal in all of this, so whatever the
    host works out from the config belongs here.
    """

    #: Triton's compiled kernel: has `asm`, `metadata` and `kernel`, the binary.
    compiled: Any
    grid: tuple[int, ...]
    #: Arguments that are numbers or names, where they depend on the config: a chunk size, say.
    scalars: tuple[int | float | bool | str, ...] = ()


@runtime_checkable
class ReadsOnly(Protocol):
    """A case that can tell which of its inputs no config may change; checked where it can."""

    def read_only(self) -> Sequence[torch.Tensor]:
        """Return the inputs that `run` must leave as they are."""


class Case(Protocol):
    """One problem with inputs; `run` may be called any number of times, with any config."""

    device: torch.device
    #: Whether a config gives the same bits every time; sums by atomics, for one, do not.
    repeatable: bool

    def compile(self, config: Config) -> Sequence[Launch]:
        """Compile what `run` would launch, launch nothing. Processes that only compile call
        nothing else, so inputs are best made when first needed.
        """

    def run(self, config: Config) -> Sequence[torch.Tensor]:
        """Launch with the config; return the outputs. Inputs may be overwritten: see `restore`."""

    def restore(self) -> None:
        """Put back what `run` has overwritten of its inputs; nothing if it overwrites none."""

    def expected(self) -> Expected | None:
        """Return what the outputs should be; None where nobody knows, and the default config
        decides.
        """

    def vendors(self) -> Mapping[str, Callable[[], Any]]:
        """Return what the vendor's library offers for the same inputs, by name."""


@dataclass(frozen=True)
class CaseSpec:
    """A recipe for a case: a function that can be imported, and arguments that JSON can hold."""

    #: "package.module:function"
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as JSON holds it, for another process."""
        return {"factory": self.factory, "arguments": dict(self.arguments)}

    def open(self) -> Case:
        module_name, _, name = self.factory.partition(":")
        try:
            function = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError) as error:
            raise TrituneError(f"no case can be made by {self.factory}: {error}") from error
        case: Case = function(**self.arguments)
        return case
