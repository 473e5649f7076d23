"""Screening one problem of an op for one target: from candidates to what is worth measuring."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritune.kernels.identity import identity
from tritune.pack.entries import keep_keys, kept_keys
from tritune.screening.candidates import candidates, groups
from tritune.screening.ranking import Ranked, ranked
from tritune.screening.rejection import REASONS, Rejection, Spilling, rejection_of
from tritune.screening.service import known_limits
from tritune.screening.task import ScreeningTask
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Build
from tritune.tuning.compile.binaries import signature_of
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool


@dataclass(frozen=True)
class ScreeningProgress:
    """The state of a screening after a build."""

    done: int
    total: int
    rejected: Mapping[str, int]


@dataclass(frozen=True)
class Screened:
    """The builds of the candidates, and what is left of them."""

    task: ScreeningTask
    builds: Mapping[Config, Build]
    #: Why candidates were dropped; None for those that are worth measuring.
    rejections: Mapping[Config, Rejection | None]
    #: Configs that are worth measuring, the most promising first.
    left: Sequence[Ranked]
    #: Of this run alone: what an earlier one compiled is not compiled again.
    seconds: float
    new_builds: int
    #: Keys of what was kept for a pack: of what is left, and of the default config.
    entries: Mapping[Config, Sequence[str]] = field(default_factory=dict)

    def reason(self, config: Config) -> str | None:
        """Return why a candidate was dropped; None if it is worth measuring."""
        rejection = self.rejections[config]
        return None if rejection is None else rejection.reason

    @property
    def candidates(self) -> int:
        return len(self.rejections)

    @property
    def compiled(self) -> int:
        """Return the number of candidates that have a binary."""
        return sum(bool(build.binary) for build in self.builds.values())

    @property
    def packed(self) -> list[Ranked]:
        """Return the configs for a pack: those that are left, and the default config in any case.

        Those that an earlier run compiled, but that could not be compiled again, are missing.
        """
        default = self.task.default
        left = [each for each in self.left if each.config in self.entries]
        if default not in self.entries or any(each.config == default for each in left):
            return left
        return [*left, Ranked(default)]

    @property
    def compile_seconds(self) -> float:
        """Return the processor time of all compilations, earlier runs' too."""
        return sum(build.seconds for build in self.builds.values())

    @property
    def rejected(self) -> dict[str, int]:
        counts = Counter(each.reason for each in self.rejections.values() if each is not None)
        return {reason: counts[reason] for reason in REASONS}

    def to_json(self) -> dict[str, Any]:
        return {
            "candidates": self.candidates,
            "compiled": self.compiled,
            "rejected": self.rejected,
            "left": len(self.left),
            "seconds": round(self.seconds, 3),
        }


def screen(
    task: ScreeningTask,
    store: Store,
    count: int | None = None,
    jobs: int = 2,
    *,
    only: Sequence[Config] | None = None,
    keep: Path | None = None,
    seed: int = 0,
    timeout_seconds: float = 120.0,
    watch: Callable[[ScreeningProgress], None] = lambda progress: None,
) -> Screened:
    """Compile candidates for the target; return which are worth measuring there.

    `count` limits the candidates, `only` names them; `keep` is a folder for the binaries of a pack.
    Every build is committed to the store as it is done: a screening that was interrupted goes on
    where it was.
    """
    started = time.monotonic()
    if only is None:
        only = candidates(task.points, count, task.default, seed)
    run = _Screening(task, store, only, keep, watch)
    spec, kernel, limits = task.spec, task.workload.kernel, run.limits
    arguments = {**spec.arguments, "keep": None if keep is None else str(keep)}
    with CompilePool(arguments, jobs, timeout_seconds, service=spec.factory) as pool:
        pool.submit_groups(groups(run.missing(), kernel, limits, seed))
        for result in pool.as_completed():
            run.take(result)
        run.drop_duplicates()
        pool.submit_groups(groups(run.not_kept(), kernel, limits, seed))
        for result in pool.as_completed():
            run.keep_entries(result)
    return run.finish(started)


class _Screening:
    """The state of one screening: the builds and rejections so far."""

    def __init__(
        self,
        task: ScreeningTask,
        store: Store,
        configs: Sequence[Config],
        keep: Path | None,
        watch: Callable[[ScreeningProgress], None],
    ) -> None:
        self.task, self.store, self.configs, self.keep = task, store, configs, keep
        self.watch, self.limits = watch, known_limits(task.target)
        kernel = task.workload.kernel
        self.place = (
            kernel.name,
            identity(kernel, task.target),
            str(task.target),
            signature_of(task.spec),
        )
        self.spilling = Spilling(self.limits)
        self.builds: dict[Config, Build] = {}
        self.rejections: dict[Config, Rejection | None] = {}
        self.entries: dict[Config, Sequence[str]] = {}
        self.dropped: Counter[str] = Counter()
        self.new_builds = 0
        wanted = set(configs)
        for build in store.builds(*self.place):
            if build.config in wanted:
                self._know(build)

    def missing(self) -> list[Config]:
        """Return the candidates that have to be compiled."""
        for config in self.configs:
            if config not in self.builds and self.spilling.implies(config):
                self._imply(config)
        return [config for config in self.configs if config not in self.rejections]

    def take(self, result: BuildResult) -> None:
        """Commit the result of a worker."""
        if result.skipped:
            self._imply(result.config)
        else:
            build = result.stored(*self.place)
            self.store.add_build(build)
            self.new_builds += 1
            self.keep_entries(result)
            self._know(build)
        self.watch(ScreeningProgress(len(self.rejections), len(self.configs), dict(self.dropped)))

    def drop_duplicates(self) -> None:
        """Keep the default or the first of configs that launch the same thing, drop the others."""
        first: dict[str, Config] = {}
        default = self.task.default
        for config in sorted(self.configs, key=lambda each: each != default):
            if self.rejections[config] is None:
                original = first.setdefault(self.builds[config].binary, config)
                if original != config:
                    self.rejections[config] = Rejection("duplicate", f"the same as {original}")

    def not_kept(self) -> list[Config]:
        """Return the configs for the pack that an earlier run has compiled, but for no pack."""
        if self.keep is None:
            return []
        for config in self.configs:
            found = kept_keys(self.keep / self.place[-1], config.key)
            if found is not None:
                self.entries.setdefault(config, found)
        default = self.task.default
        wanted = [c for c in self.configs if self.rejections[c] is None or c == default]
        built = [c for c in wanted if c in self.builds and self.builds[c].binary]
        return [c for c in built if c not in self.entries]

    def keep_entries(self, result: BuildResult) -> None:
        """Remember where a config's binaries are, for this run and for the next."""
        if self.keep is not None and result.entries:
            self.entries[result.config] = result.entries
            keep_keys(self.keep / self.place[-1], result.config.key, result.entries)

    def finish(self, started: float) -> Screened:
        left = [c for c in self.configs if self.rejections[c] is None]
        order = ranked(self.task, {config: self.builds[config] for config in left}, self.limits)
        seconds = time.monotonic() - started
        return Screened(
            self.task, self.builds, self.rejections, order, seconds, self.new_builds, self.entries
        )

    def _know(self, build: Build) -> None:
        self.builds[build.config] = build
        if build.failure:
            # A crash of the compiler is the compiler's way to refuse.
            reason = build.failure if build.failure in REASONS else "compile_error"
            rejection: Rejection | None = Rejection(reason, build.message)
        else:
            rejection = rejection_of(build.config, build.facts, self.limits)
        if rejection is not None and rejection.reason == "spills":
            self.spilling.add(build.config)
        self._decide(build.config, rejection)

    def _imply(self, config: Config) -> None:
        self._decide(config, Rejection("spills", "spills with more registers already"))

    def _decide(self, config: Config, rejection: Rejection | None) -> None:
        self.rejections[config] = rejection
        if rejection is not None:
            self.dropped[rejection.reason] += 1
