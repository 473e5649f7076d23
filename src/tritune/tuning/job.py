"""The input and output of a tuning run: jobs, settings, progress and outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritune.space import Config, Points
from tritune.store.decide_winner import Winner
from tritune.store.records import Task
from tritune.tuning.case import CaseSpec
from tritune.tuning.effort import Effort
from tritune.tuning.search import DEFAULT_STRATEGY, Prior


@dataclass(frozen=True)
class Job:
    """A task to tune, and everything that the pipeline has to know of it."""

    task: Task
    spec: CaseSpec
    points: Points
    default: Config
    target: str
    prior: Sequence[Prior] = ()
    #: The least time that the hardware allows, if that is known.
    limit_ms: float | None = None
    #: The device that is measured on, as torch names it.
    device: str = "cpu"


@dataclass(frozen=True)
class Settings:
    effort: Effort
    strategy: str = DEFAULT_STRATEGY
    budget_seconds: float = math.inf
    jobs: int = 2
    seed: int = 0
    build_timeout_seconds: float = 120.0
    run_timeout_seconds: float = 60.0
    memory_bytes: int = 4 << 30
    #: Whether the vendor's library is timed beside the finalists.
    vendors: bool = True
    #: Whether to wait for another process that measures on the device, or raise DeviceTakenError.
    wait: bool = True


@dataclass(frozen=True)
class Progress:
    """The state of a run after a batch."""

    trials: int
    most_trials: int
    failures: Mapping[str, int]
    best_ms: float | None
    default_ms: float | None
    config: Config | None
    stage: str
    #: In the stage "waiting": the process that measures on the device, if that is known.
    holder: int | None = None


@dataclass(frozen=True)
class Outcome:
    task: Task
    winner: Winner | None
    trials: int
    #: Trials that this run added; the rest was known.
    new_trials: int
    failures: Mapping[str, int]
    vendor: str | None
    vendor_ms: float | None
    seconds: float
    #: Kernels that were compiled; what was found in Triton's cache does not count.
    compiles: int = 0
    #: Whether other processes kept it from being decided: the default stays, and the next run tries
    #: again.
    busy: bool = False
    #: Samples that were thrown away because other processes disturbed them.
    disturbed: int = 0

    @property
    def known(self) -> bool:
        """Return whether nothing had to be measured."""
        return self.new_trials == 0 and not self.busy
