"""The task of a screening: an op's problem and a target."""

from __future__ import annotations

from dataclasses import dataclass

from tritune.kernels.kernel import Problem
from tritune.space import Config, Points, Space
from tritune.targets.target import Target
from tritune.tuning.case import CaseSpec
from tritune.workloads.problems.parse import parsed
from tritune.workloads.workload import Workload


@dataclass(frozen=True)
class ScreeningTask:
    """A problem of an op to screen for a target."""

    workload: Workload
    problem: Problem
    target: Target
    #: The kernel's own unless a part of it is asked for.
    space: Space | None = None

    @property
    def spec(self) -> CaseSpec:
        """Return what decides the binaries beside the config."""
        arguments = {
            "workload": self.workload.name,
            "problem": self.problem.fields(),
            "target": str(self.target),
        }
        return CaseSpec("tritune.screening.service:Screener", arguments)

    @property
    def default(self) -> Config:
        return self.workload.kernel.default(self.problem, self.target.family, self.target.arch)

    @property
    def points(self) -> Points:
        space = self.space or self.workload.kernel.space
        return space.on(self.target.family, self.target.arch, self.problem.fields())

    def config(self, text: str) -> Config:
        """Return the default config, changed as a text such as "BLOCK_M=64 num_warps=4" says."""
        default = self.default.as_kwargs()
        types = {name: type(value) for name, value in default.items()}
        given = parsed(text, types, f"a config of {self.workload.name} on {self.target}")
        config = Config.of(**{**default, **given})
        fields = self.problem.fields()
        self.workload.kernel.space.check(config, self.target.family, self.target.arch, fields)
        return config
