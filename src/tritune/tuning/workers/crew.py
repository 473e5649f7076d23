"""The worker processes of a run, kept from one case to the next: to start them takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritune.space import Config
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.measure.client import Bench

if TYPE_CHECKING:
    from tritune.tuning.tuner import Settings


class Crew:
    """Those who compile and those who measure, turned from one case to the next."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: CompilePool | None = None
        self._bench: Bench | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._bench is not None:
            self._bench.close()

    def turn_to(self, spec: CaseSpec, default: Config) -> tuple[CompilePool, Bench]:
        """Both, for this case. A pool that cannot go on does not take the next case with it."""
        settings, memory, arguments = self._settings, self._settings.memory_bytes, spec.to_json()
        if self._pool is not None and self._pool.broken:
            self._pool.close()
            self._pool = None
        if self._pool is None:
            timeout_seconds = settings.build_timeout_seconds
            self._pool = CompilePool(arguments, settings.jobs, timeout_seconds, memory)
        else:
            self._pool.turn_to(arguments)
        if self._bench is None:
            self._bench = Bench(spec, settings.run_timeout_seconds, memory, default)
        else:
            self._bench.turn_to(spec, default)
        return self._pool, self._bench
