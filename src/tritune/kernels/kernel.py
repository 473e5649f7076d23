"""What a kernel is to the rest of tritune: device code with everything that must be known to tune
it.
"""

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


# A kernel equals itself only: it is looked up on every call, by its address.
@dataclass(frozen=True, eq=False)
class Kernel:
    name: str
    #: The Triton functions, for their identity and for counting.
    functions: tuple[Any, ...]
    space: Space
    #: `default(problem, family, arch)`: a config that is right everywhere and good somewhere.
    default: Callable[[Any, str, int | str], Config]
    #: Plain torch, in the formula's own words: the specification.
    reference: Callable[..., Any]
    #: What is known of a call.
    problem: type[Problem]
