"""Kernels: device code with its space, default config, reference and problem type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tritune.space import Config, Space


@dataclass(frozen=True)
class Problem:
    """The facts about a call that can change which config wins. Each kernel declares its own."""

    def fields(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


# Compared by identity, since each call looks it up.
@dataclass(frozen=True, eq=False)
class Kernel:
    name: str
    #: The Triton functions, for their identity and for counting.
    functions: tuple[Any, ...]
    space: Space
    #: `default(problem, family, arch)`: a config that is valid for every problem.
    default: Callable[[Any, str, int | str], Config]
    #: Plain torch by the formula: the specification.
    reference: Callable[..., Any]
    #: The type of its problems.
    problem: type[Problem]
