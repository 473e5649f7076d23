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
from tritune.screening.service import known_limits
from tritune.screening.subject import Subject
from tritune.screening.verdict import REASONS, Spilling, Verdict, judge
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Build
from tritune.tuning.compile.binaries import signature_of
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool


@dataclass(frozen=True)
class Watched:
    """How far a screening is."""

    done: int
    total: int
    rejected: Mapping[str, int]


@dataclass(frozen=True)
class Screened:
    """What became of the candidates."""

    subject: Subject
    builds: Mapping[Config, Build]
    verdicts: Mapping[Config, Verdict]
    #: Configs that are worth measuring, the most promising first.
    left: Sequence[Ranked]
    #: Of this run alone: what an earlier one compiled is not compiled again.
    seconds: float
    new_builds: int
    #: Keys of what was kept for a pack: of what is left, and of the default config.
    entries: Mapping[Config, Sequence[str]] = field(default_factory=dict)

    @property
    def candidates(self) -> int:
        return len(self.verdicts)

    @property
    def compiled(self) -> int:
        """Candidates of which there was a binary to look at."""
        return sum(bool(build.binary) for build in self.builds.values())

    @property
    def packed(self) -> list[Ranked]:
        """What belongs into a pack: what is left, and the default config whatever it is like.

        What an earlier run compiled, but could not be compiled again for the pack, is not there.
        """
        default = self.subject.default
        left = [each for each in self.left if each.config in self.entries]
        if default not in self.entries or any(each.config == default for each in left):
            return left
        return [*left, Ranked(default)]

    @property
    def compile_seconds(self) -> float:
        """Processor time of all compilations, earlier runs' too."""
        return sum(build.seconds for build in self.builds.values())

    @property
    def rejected(self) -> dict[str, int]:
        counts = Counter(verdict.reason for verdict in self.verdicts.values())
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
    subject: Subject,
    store: Store,
    count: int | None = None,
    jobs: int = 2,
    *,
    only: Sequence[Config] | None = None,
    keep: Path | None = None,
    seed: int = 0,
    timeout_seconds: float = 120.0,
    watch: Callable[[Watched], None] = lambda watched: None,
) -> Screened:
    """Compile candidates for the target and tell which are worth measuring there.

    `count` limits the candidates, `only` names them; `keep` is a folder for the binaries of a pack.
    Every build is committed to the store as it is done: a screening that was interrupted goes on
    where it was.
    """
    started = time.monotonic()
    if only is None:
        only = candidates(subject.points, count, subject.default, seed)
    run = _Screening(subject, store, only, keep, watch)
    spec, kernel, limits = subject.spec, subject.workload.kernel, run.limits
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
    """The state of one screening: what is known of each candidate so far."""

    def __init__(
        self,
        subject: Subject,
        store: Store,
        configs: Sequence[Config],
        keep: Path | None,
        watch: Callable[[Watched], None],
    ) -> None:
        self.subject, self.store, self.configs, self.keep = subject, store, configs, keep
        self.watch, self.limits = watch, known_limits(subject.target)
        kernel = subject.workload.kernel
        self.place = (
            kernel.name,
            identity(kernel, subject.target),
            str(subject.target),
            signature_of(subject.spec),
        )
        self.spilling = Spilling(self.limits)
        self.builds: dict[Config, Build] = {}
        self.verdicts: dict[Config, Verdict] = {}
        self.entries: dict[Config, Sequence[str]] = {}
        self.dropped: Counter[str] = Counter()
        self.new_builds = 0
        wanted = set(configs)
        for build in store.builds(*self.place):
            if build.config in wanted:
                self._know(build)

    def missing(self) -> list[Config]:
        """Candidates that have to be compiled."""
        for config in self.configs:
            if config not in self.builds and self.spilling.implies(config):
                self._imply(config)
        return [config for config in self.configs if config not in self.verdicts]

    def take(self, result: BuildResult) -> None:
        """Commit what a worker found."""
        if result.skipped:
            self._imply(result.config)
        else:
            build = result.stored(*self.place)
            self.store.add_build(build)
            self.new_builds += 1
            self.keep_entries(result)
            self._know(build)
        self.watch(Watched(len(self.verdicts), len(self.configs), dict(self.dropped)))

    def drop_duplicates(self) -> None:
        """Of configs that launch the same thing, the first stays, and the default if it is one."""
        first: dict[str, Config] = {}
        default = self.subject.default
        for config in sorted(self.configs, key=lambda each: each != default):
            if self.verdicts[config].reason is None:
                original = first.setdefault(self.builds[config].binary, config)
                if original != config:
                    self.verdicts[config] = Verdict("duplicate", f"the same as {original}")

    def not_kept(self) -> list[Config]:
        """Configs for the pack that an earlier run has compiled, but for no pack."""
        if self.keep is None:
            return []
        for config in self.configs:
            found = kept_keys(self.keep / self.place[-1], config.key)
            if found is not None:
                self.entries.setdefault(config, found)
        default = self.subject.default
        wanted = [c for c in self.configs if self.verdicts[c].reason is None or c == default]
        built = [c for c in wanted if c in self.builds and self.builds[c].binary]
        return [c for c in built if c not in self.entries]

    def keep_entries(self, result: BuildResult) -> None:
        """Remember where a config's binaries are, for this run and for the next."""
        if self.keep is not None and result.entries:
            self.entries[result.config] = result.entries
            keep_keys(self.keep / self.place[-1], result.config.key, result.entries)

    def finish(self, started: float) -> Screened:
        left = [c for c in self.configs if self.verdicts[c].reason is None]
        order = ranked(self.subject, {config: self.builds[config] for config in left}, self.limits)
        seconds = time.monotonic() - started
        return Screened(
            self.subject, self.builds, self.verdicts, order, seconds, self.new_builds, self.entries
        )

    def _know(self, build: Build) -> None:
        self.builds[build.config] = build
        if build.failure:
            # A crash of the compiler is the compiler's way to refuse.
            reason = build.failure if build.failure in REASONS else "compile_error"
            verdict = Verdict(reason, build.message)
        else:
            verdict = judge(build.config, build.facts, self.limits)
        if verdict.reason == "spills":
            self.spilling.add(build.config)
        self._decide(build.config, verdict)

    def _imply(self, config: Config) -> None:
        self._decide(config, Verdict("spills", "spills with more registers already"))

    def _decide(self, config: Config, verdict: Verdict) -> None:
        self.verdicts[config] = verdict
        if verdict.reason is not None:
            self.dropped[verdict.reason] += 1
