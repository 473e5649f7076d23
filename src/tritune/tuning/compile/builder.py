"""The service inside a compiling worker: compiles configs of one case, launches nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tritune.space import Config
from tritune.store.records import Build
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.binaries import digest_of, facts_of
from tritune.tuning.compile.compiles import compile_count
from tritune.tuning.compile.warm_up import warm_up
from tritune.tuning.workers.failures import Failure, failure_of_compiler


@dataclass(frozen=True)
class BuildResult:
    """One config, compiled or not."""

    config: Config
    #: Digest of the launches; empty where the build failed. Equal digests launch the same thing.
    binary: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    #: How many kernels were compiled: 0 where all were in Triton's cache.
    compiles: int = 0
    failure: Failure | None = None
    #: Keys of the entries that were kept for a pack.
    entries: Sequence[str] = ()
    #: Whether it was not compiled, because it would spill as badly as a config that was.
    skipped: bool = False

    def stored(self, kernel: str, identity: str, target: str, signature: str) -> Build:
        """Return the store's record of it."""
        reason, message = None, ""
        if self.failure is not None:
            reason, message = self.failure.reason, self.failure.message
        return Build(
            kernel, identity, target, signature, self.config, self.binary, self.facts,
            self.seconds, reason, message,
        )  # fmt: skip


class Builder:
    """Opens the case once and compiles what it is asked for."""

    def __init__(
        self, factory: str, arguments: Mapping[str, Any], report: Callable[[Any], None]
    ) -> None:
        self._report = report
        self._compiles = compile_count()
        warm_up(launching=False)
        self._case = CaseSpec(factory, arguments).open()

    def build(self, configs: Sequence[Config]) -> bool:
        """Report a `BuildResult` for each config; return whether this process can go on.

        If it cannot, the rest of the configs is left for another.
        """
        for config in configs:
            result = self._build(config)
            self._report(result)
            if result.failure is not None and result.failure.tainted:
                return False
        return True

    def _build(self, config: Config) -> BuildResult:
        start = time.perf_counter()
        try:
            launches = self._case.compile(config)
            result = BuildResult(config, digest_of(config, launches), facts_of(launches))
        except Exception as error:
            result = BuildResult(config, failure=failure_of_compiler(error))
        seconds = time.perf_counter() - start
        return replace(result, seconds=seconds, compiles=self._compiles.taken())
