"""The service inside a screening worker: compiles an op's configs for a target, launches none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tritune.errors import TrituneError
from tritune.pack.entries import keep_entry
from tritune.screening.sources import pretending, sources_of
from tritune.screening.staged import StagedCompiler
from tritune.screening.verdict import Spilling, judge
from tritune.space import Config
from tritune.targets.limits import Limits, limits_of
from tritune.targets.target import Target
from tritune.tuning.case import Launch
from tritune.tuning.compile.binaries import digest_of, facts_of
from tritune.tuning.workers.failures import failure_of_compiler
from tritune.workloads.catalog import workload_named


class ScreeningError(TrituneError):
    """Nothing can be compiled or kept here, whatever the config."""


class HopelessError(Exception):
    """The rest of a compilation is not worth its time."""


class Screener:
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

    def screen(self, configs: Sequence[Mapping[str, Any]]) -> None:
        """Compile configs one after the other; the report says when each begins and what it gave.

        What cannot but spill, because it spills with more registers, is not compiled.
        """
        spilling = Spilling(self._limits)
        for number, values in enumerate(configs):
            config = Config.of(**values)
            self._report({"config": number})
            if spilling.implies(config):
                self._report({"config": number, "implied": "spills"})
                continue
            result = self._build(config)
            facts = result.get("facts")
            if facts is not None and judge(config, facts, self._limits).reason == "spills":
                spilling.add(config)
            self._report({"config": number, **result})

    def _build(self, config: Config) -> dict[str, Any]:
        start = time.process_time() + _children_seconds()
        try:
            with pretending(self._target):
                sources = sources_of(self._workload, self._inputs, config)
                launches = [
                    Launch(self._compiler.compile(each, self._inspect), each.grid, each.scalars)
                    for each in sources
                ]
            facts = facts_of(launches)
            result: dict[str, Any] = {"binary": digest_of(config, launches), "facts": facts}
            wanted = config == self._default or judge(config, facts, self._limits).reason is None
            if self._keep is not None and wanted:
                result["entries"] = [keep_entry(self._keep, launch.compiled) for launch in launches]
        except HopelessError as error:
            result = {"failure": "out_of_resources", "message": str(error)}
        except OSError as error:
            # A full disk, or a compiler that is not installed, tells nothing of the config.
            raise ScreeningError(f"screening had to stop: {error}") from error
        except Exception as error:
            failure = failure_of_compiler(error)
            result = {"failure": failure.reason, "message": failure.message}
        return {**result, "seconds": time.process_time() + _children_seconds() - start}

    def _inspect(self, stage: str, product: Any, metadata: Mapping[str, Any]) -> None:
        """Give up once it is certain that a launch would fail."""
        if self._limits is None or stage != "llir":
            return
        shared = metadata.get("shared") or 0
        if shared > self._limits.shared_per_block:
            raise HopelessError(
                f"{shared} bytes of shared memory per block, "
                f"allowed: {self._limits.shared_per_block}"
            )


def known_limits(target: Target) -> Limits | None:
    """What the target's cores allow; None for a CPU, which can run whatever it is given."""
    return None if target.family == "cpu" else limits_of(target)


def _children_seconds() -> float:
    """Processor time of ptxas and other processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
