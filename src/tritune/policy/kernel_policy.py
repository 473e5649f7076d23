"""The answers for one kernel on one device: exact, learned, default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tritune.kernels.kernel import Kernel, Problem
from tritune.policy.learning.measured import Valid
from tritune.policy.nearest import Fields
from tritune.space import Config, SpaceError
from tritune.store.records import problem_text
from tritune.targets.target import Target


@dataclass(frozen=True)
class ChosenConfig:
    """A config, and where it comes from.

    "exact": it won for this very problem. "learned": it beat the default for problems on both
    sides of this one. "default": the kernel's own. "warmed": in serve mode, a config whose code is
    there.
    """

    config: Config
    source: str


class Learned(Protocol):
    """The part of a policy that answers for problems that were never measured."""

    def answer(self, fields: Fields, default: Config, valid: Valid) -> Config | None:
        """Return a config that is known to be no slower than the default; None if there is none."""


@dataclass(frozen=True)
class KernelPolicy:
    """The configs for one kernel on one device.

    It is asked once per problem: `exact` and `learned` may read files.
    """

    kernel: Kernel
    target: Target
    #: The winner for a problem, given as its text.
    exact: Callable[[str], Config | None]
    #: Asked only where there is no winner.
    learned: Callable[[], Learned | None]

    def answer(self, problem: Problem) -> ChosenConfig:
        fields = problem.fields()
        exact = self.exact(problem_text(fields))
        if exact is not None and self.valid(exact, fields):
            return ChosenConfig(exact, "exact")
        default = self.kernel.default(problem, self.target.family, self.target.arch)
        learned = self.learned()
        config = None if learned is None else learned.answer(fields, default, self.valid)
        return (
            ChosenConfig(default, "default") if config is None else ChosenConfig(config, "learned")
        )

    def valid(self, config: Config, fields: Fields) -> bool:
        return is_valid(self.kernel, self.target, config, fields)


def is_valid(kernel: Kernel, target: Target, config: Config, fields: Fields) -> bool:
    """Return whether a config is a point of the kernel's space for a target and a problem.

    Stored configs may not be: a space has shrunk, or a file was edited.
    """
    try:
        kernel.space.check(config, target.family, target.arch, fields)
    except SpaceError:
        return False
    return True
