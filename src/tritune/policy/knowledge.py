"""What is known of a kernel on a device, and the answer it gives: exact, learned, default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tritune.kernels.kernel import Kernel, Problem
from tritune.policy.features import Fields
from tritune.space import Config, SpaceError
from tritune.store.records import problem_text
from tritune.targets.target import Target


@dataclass(frozen=True)
class Answer:
    """A config, and where it comes from.

    "exact": it won for this very problem. "learned": derived from other problems. "default": the
    kernel's own. "warmed": in serve mode, what a near problem uses, because its code is there.
    """

    config: Config
    source: str


class Chooser(Protocol):
    """What answers for problems that were never measured."""

    @property
    def configs(self) -> Sequence[Config]:
        """Every config that it can answer with."""

    def ranked(self, fields: Fields) -> Sequence[Config]:
        """Configs for a problem, the best first; none where it knows nothing."""


@dataclass(frozen=True)
class Knowledge:
    """Both questions are asked once per problem at most: they may read files."""

    kernel: Kernel
    target: Target
    #: The winner for a problem, given as its text.
    exact: Callable[[str], Config | None]
    #: Asked only where there is no winner.
    learned: Callable[[], Chooser | None]

    def answer(self, problem: Problem) -> Answer:
        fields = problem.fields()
        exact = self.exact(problem_text(fields))
        if exact is not None and self.valid(exact, fields):
            return Answer(exact, "exact")
        chooser = self.learned()
        for config in chooser.ranked(fields) if chooser is not None else ():
            if self.valid(config, fields):
                return Answer(config, "learned")
        default = self.kernel.default(problem, self.target.family, self.target.arch)
        return Answer(default, "default")

    def valid(self, config: Config, fields: Fields) -> bool:
        return is_valid(self.kernel, self.target, config, fields)


def is_valid(kernel: Kernel, target: Target, config: Config, fields: Fields) -> bool:
    """Whether a config is a point of the kernel's space for a target and a problem.

    What was stored may be of another day: a space that has shrunk, a file that was edited.
    """
    try:
        kernel.space.check(config, target.family, target.arch, fields)
    except SpaceError:
        return False
    return True
