"""The order in which configs are worth measuring, by the targets' model of how long they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritune.screening.subject import Subject
from tritune.screening.verdict import binary_facts
from tritune.screening.works import WORKS, work_of
from tritune.space import Config
from tritune.store.records import Build
from tritune.targets.limits import Limits
from tritune.targets.ranking import Estimate, estimate


@dataclass(frozen=True)
class Ranked:
    """A config and how long the model thinks that it takes; None where there is no model."""

    config: Config
    estimate_ms: float | None = None


def ranked(subject: Subject, builds: Mapping[Config, Build], limits: Limits | None) -> list[Ranked]:
    """The configs, the most promising first; in the order given where no model knows the op."""
    found = []
    for config, build in builds.items():
        guess = estimate_of(subject, config, build.facts, limits)
        found.append(Ranked(config, None if guess is None else 1000 * guess.seconds))
    return sorted(
        found, key=lambda each: math.inf if each.estimate_ms is None else each.estimate_ms
    )


def estimate_of(
    subject: Subject, config: Config, facts: Mapping[str, Any], limits: Limits | None
) -> Estimate | None:
    """What the model makes of one build; None where it knows nothing of the op or the target."""
    kernel = subject.workload.kernel.name
    if limits is None or kernel not in WORKS:
        return None
    work = work_of(kernel, subject.problem.fields(), config.as_kwargs(), limits)
    return estimate(work, binary_facts(facts), limits)
