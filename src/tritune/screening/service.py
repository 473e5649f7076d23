"""The service inside a screening worker: compiles configs of an op for a target, launches none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritune.errors import TrituneError
from tritune.pack.entries import keep_entry
from tritune.screening.capture import absent_device, launches_of
from tritune.screening.rejection import Spilling, rejection_of
from tritune.screening.staged import StagedCompiler
from tritune.space import Config
from tritune.targets.limits import Limits, limits_of
from tritune.targets.target import Target
from tritune.tuning.case import Launch
from tritune.tuning.compile.binaries import digest_of, facts_of
from tritune.tuning.compile.builder import Builder, BuildResult
from tritune.tuning.workers.failures import Failure, failure_of_compiler
from tritune.workloads.catalog import workload_named


class ScreeningError(TrituneError):
    """Nothing can be compiled or kept here, whatever the config."""


class CannotLaunchError(Exception):
    """A launch would fail, so the rest of the compilation is left out."""


class Screener(Builder):
    """Opens an op's problem once, for a target that need not be here.

    With a folder `keep`, binaries of configs that are worth measuring are left there for a pack.
    Of the default config they are in any case: tuning begins with it.
    """

    def __init__(
        self,
        workload: str,
        problem: Mapping[str, Any],
        target: str,
        keep: str | None,
        report: Callable[[Any], None],
    ) -> None:
        self._workload = workload_named(workload)
        opened = self._workload.exactly(problem)
        self._inputs = self._workload.empty_inputs(opened)
        self._target = Target.parse(target)
        self._limits = known_limits(self._target)
        family, arch = self._target.family, self._target.arch
        self._default = self._workload.kernel.default(opened, family, arch)
        self._keep = None if keep is None else Path(keep)
        self._compiler = StagedCompiler(self._target)
        self._report = report

    def build(self, configs: Sequence[Config]) -> bool:
        """Report a `BuildResult` for each config; return whether this process can go on.

        What cannot but spill, because it spills with more registers, is not compiled.
        """
        self._spilling = Spilling(self._limits)
        return super().build(configs)

    def _build(self, config: Config) -> BuildResult:
        if self._spilling.implies(config):
            return BuildResult(config, skipped=True)
        start = _processor_seconds()
        try:
            result = self._compiled(config)
        except CannotLaunchError as error:
            result = BuildResult(config, failure=Failure("out_of_resources", str(error)))
        except OSError as error:
            # A full disk, or a compiler that is not installed, tells nothing of the config.
            raise ScreeningError(f"screening had to stop: {error}") from error
        except Exception as error:
            result = BuildResult(config, failure=failure_of_compiler(error))
        return replace(result, seconds=_processor_seconds() - start)

    def _compiled(self, config: Config) -> BuildResult:
        with absent_device(self._target):
            launches = [
                Launch(self._compiler.compile(each, self._inspect), each.grid, each.scalars)
                for each in launches_of(self._workload, self._inputs, config)
            ]
        facts = facts_of(launches)
        rejection = rejection_of(config, facts, self._limits)
        if rejection is not None and rejection.reason == "spills":
            self._spilling.add(config)
        entries: list[str] = []
        if self._keep is not None and (rejection is None or config == self._default):
            entries = [keep_entry(self._keep, launch.compiled) for launch in launches]
        return BuildResult(config, digest_of(config, launches), facts, entries=entries)

    def _inspect(self, stage: str, product: Any, metadata: Mapping[str, Any]) -> None:
        """Raise CannotLaunchError once it is certain that a launch would fail."""
        if self._limits is None or stage != "llir":
            return
        shared = metadata.get("shared") or 0
        if shared > self._limits.shared_per_block:
            raise CannotLaunchError(
                f"{shared} bytes of shared memory per block, "
                f"allowed: {self._limits.shared_per_block}"
            )


def known_limits(target: Target) -> Limits | None:
    """Return the limits of a target; None for a CPU, which can run whatever it is given."""
    return None if target.family == "cpu" else limits_of(target)


def _processor_seconds() -> float:
    """Return the processor time of this process, and of ptxas and others that it has started."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
