"""Ranking configs by their estimated times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritune.screening.launch_work import WORKS, work_of
from tritune.screening.rejection import binary_facts
from tritune.screening.task import ScreeningTask
from tritune.space import Config
from tritune.store.records import Build
from tritune.targets.limits import Limits
from tritune.targets.ranking import Estimate, estimate


@dataclass(frozen=True)
class Ranked:
    """A config and its estimated time; None where no model knows the op."""

    config: Config
    estimate_ms: float | None = None


def ranked(
    task: ScreeningTask, builds: Mapping[Config, Build], limits: Limits | None
) -> list[Ranked]:
    """Return the configs, the fastest estimate first; as given where no model knows the op."""
    found = []
    for config, build in builds.items():
        guess = estimate_of(task, config, build.facts, limits)
        found.append(Ranked(config, None if guess is None else 1000 * guess.seconds))
    return sorted(
        found, key=lambda each: math.inf if each.estimate_ms is None else each.estimate_ms
    )


def estimate_of(
    task: ScreeningTask, config: Config, facts: Mapping[str, Any], limits: Limits | None
) -> Estimate | None:
    """Return the estimate for one build; None where the model does not know op or target."""
    kernel = task.workload.kernel.name
    if limits is None or kernel not in WORKS:
        return None
    work = work_of(kernel, task.problem.fields(), config.as_kwargs(), limits)
    return estimate(work, binary_facts(facts), limits)
