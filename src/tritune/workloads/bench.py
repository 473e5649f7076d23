"""Measure an op, its default config and the libraries' functions, interleaved in one process.

Every round times each candidate once, in a shuffled order, with cold caches; the median counts.
A function that fails or gives wrong results is not timed. The probe of the hardware's limit runs in
every round too; of that the best rate counts.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.kernels.kernel import Problem
from tritune.policy import answer_for, forced
from tritune.space import Config
from tritune.targets.device import detect
from tritune.targets.probes import COPY, READ, Probe
from tritune.targets.roofline import fastest_probe, measure_peaks
from tritune.tuning.case import Expected
from tritune.tuning.measure.race import Race
from tritune.tuning.measure.statistics import pooled
from tritune.tuning.measure.timing import CpuStopwatch, Flush, stopwatch
from tritune.tuning.measure.verify import judge, judge_vendor, outputs_of
from tritune.workloads.case import OpCase
from tritune.workloads.libraries import crash_check
from tritune.workloads.libraries.library import Library, assisted, in_a_line, vendors
from tritune.workloads.workload import Outputs, Workload

OURS, DEFAULT = "ours", "default"
#: A limit that is exceeded by more than this was measured on a busy machine, and is not shown.
MOST_OF_LIMIT = 1.05
#: Runs of the limit's probe in each round: it is short.
LIMIT_CALLS = 5
LEAST_ROUNDS, MOST_ROUNDS = 7, 41
#: A vendor's function that is this much slower than the best one after a few rounds is dropped.
BEHIND = 1.5
BEHIND_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """The measurements of one problem."""

    op: str
    problem: Problem
    config: Config
    #: The origin of the config: exact, learned or default.
    source: str
    ours_ms: float
    default_ms: float
    vendor: str | None
    vendor_ms: float | None
    #: The time of the best function of each library.
    libraries_ms: Mapping[str, float]
    #: Functions for which a part of the work was done beforehand; not in the ratio.
    assisted_ms: Mapping[str, float]
    #: Functions that are not compared with, and the reasons.
    failed: Mapping[str, str]
    #: The bound of the problem on this device, compute or memory; its rate in operations or bytes
    #: per second; and the fraction of it that our call reaches.
    limit: str
    limit_rate: float
    #: None where the limit was not measured, because the machine was busy.
    limit_fraction: float | None

    @property
    def ratio(self) -> float | None:
        """Return how many times faster than the vendor our call is."""
        return None if self.vendor_ms is None else self.vendor_ms / self.ours_ms

    def to_json(self) -> dict[str, Any]:
        fields, config = self.problem.fields(), self.config.to_json()
        derived = {"problem": fields, "dtype": fields["dtype"], "config": config}
        return {**vars(self), **derived, "ratio": self.ratio}


def summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return geometric means, and the worst ratio."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    gains = [row.default_ms / row.ours_ms for row in rows]
    return {
        "geomean_ratio": statistics.geometric_mean(ratios) if ratios else None,
        "min_ratio": min(ratios, default=None),
        "geomean_tuned_over_default": statistics.geometric_mean(gains) if rows else None,
    }


@torch.no_grad()
def measure(
    workload: Workload,
    problem: Problem,
    device: torch.device,
    seconds: float = 3.0,
    libraries: Sequence[Library] = (),
    seed: int = 0,
) -> Row:
    """Time the op as it is called, its default config and the libraries' functions."""
    case = OpCase(workload, problem, device, seed)
    target = detect(device).target
    default = workload.kernel.default(problem, target.family, target.arch)
    answer = answer_for(workload.kernel, problem, device)
    inputs, expected = case.inputs, case.expected()
    calls: dict[str, Callable[[], Any]] = {OURS: functools.partial(workload.run, inputs)}
    if answer.config != default:
        calls[DEFAULT] = functools.partial(_with, workload, default, inputs)
    for name, call in calls.items():
        reason = judge(_outputs(case, call), expected, ())
        if reason is not None:
            raise TrituneError(
                f"{workload.name} {problem}: the {name} config gives wrong results: {reason}"
            )
    rivals, failed = _rivals(case, libraries, expected)
    bound = functools.partial(
        workload.work(problem).bound, problem.fields()["dtype"], measure_peaks(device)
    )
    probed = bound().kind
    probe = fastest_probe(probed, device)
    samples, repeated, reached = _race(
        case, {**calls, **rivals}, rivals.keys(), probe, seconds, seed
    )
    medians = {name: statistics.median(found) for name, found in samples.items()}
    limit = bound(calls=repeated)
    if limit.kind == probed and reached > limit.rate:
        limit = replace(limit, rate=reached)
    fraction = limit.seconds / (medians[OURS] / 1000)
    unaided = {n: medians[n] for n in rivals if not assisted(workload, n)}
    vendor = min(unaided, key=unaided.__getitem__, default=None)
    return Row(
        op=workload.name,
        problem=problem,
        config=answer.config,
        source=answer.source,
        ours_ms=medians[OURS],
        default_ms=medians.get(DEFAULT, medians[OURS]),
        vendor=vendor,
        vendor_ms=None if vendor is None else unaided[vendor],
        libraries_ms=_best_of_each(unaided),
        assisted_ms={n: medians[n] for n in rivals if assisted(workload, n)},
        failed=failed,
        limit="memory" if limit.kind in (READ, COPY) else "compute",
        limit_rate=limit.rate,
        limit_fraction=fraction if fraction <= MOST_OF_LIMIT else None,
    )


def _rivals(
    case: OpCase, libraries: Sequence[Library], expected: Expected
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Return the libraries' calls that give right results, and why the others are left out."""
    # torch keeps a few compiled versions of a function, searches them in every call, and stops
    # compiling when there are too many. Each problem starts without any.
    torch.compiler.reset()
    crashes = {each: crash_check.crash_of(each, case.workload, case.problem) for each in libraries}
    sound = [library for library, crash in crashes.items() if crash is None]
    offered, failed = vendors(case.workload, case.inputs, sound)
    failed |= {each.name: f"ends its process: {crash}" for each, crash in crashes.items() if crash}
    right = {}
    for name, call in offered.items():
        try:
            reason = judge_vendor(_outputs(case, call), expected, ())
        except Exception as error:
            reason = in_a_line(error)
        if reason is None:
            right[name] = call
        else:
            failed[name] = reason
    return right, failed


def _outputs(case: OpCase, call: Callable[[], Any]) -> Sequence[torch.Tensor]:
    """Make a call; return the part of its outputs that is compared."""
    case.restore()
    return case.compared(outputs_of(call))


def _best_of_each(times: Mapping[str, float]) -> dict[str, float]:
    """Return the shortest time of each library; its name begins those of its functions."""
    best: dict[str, float] = {}
    for name, ms in times.items():
        library = name.split(" ", 1)[0]
        best[library] = min(ms, best.get(library, math.inf))
    return best


def _with(workload: Workload, config: Config, inputs: dict[str, Any]) -> Outputs:
    with forced(workload.kernel, config):
        return workload.run(inputs)


def _race(
    case: OpCase,
    calls: Mapping[str, Callable[[], Any]],
    rivals: Collection[str],
    probe: Probe,
    seconds: float,
    seed: int,
) -> tuple[dict[str, list[float]], int, float]:
    """Return each call's samples in ms, the calls in a sample, and the probe's best rate."""
    flush = Flush(case.device)
    watches = {n: stopwatch(case.device, call, case.restore, flush) for n, call in calls.items()}
    # The same number of calls in a sample for all: the first of them finds the caches cold.
    clocks = [w for w in watches.values() if isinstance(w, CpuStopwatch)]
    for clock in clocks:
        clock.calls = max(each.calls for each in clocks)
    race = Race(watches, keep=watches, seed=seed)
    started, rate = time.monotonic(), 0.0
    while race.held < MOST_ROUNDS:
        if race.held >= LEAST_ROUNDS and time.monotonic() - started > seconds:
            break
        race.hold(lambda name: [watches[name].sample_ms()])
        rate = max(rate, probe.rate(case.device, LIMIT_CALLS))
        if race.held == BEHIND_ROUNDS:
            fastest = {name: min(pooled(race.rounds[name])) for name in rivals}
            best = min(fastest.values(), default=0.0)
            for name in rivals:
                if fastest[name] > BEHIND * best:
                    race.leave(name)
    times = {name: pooled(rounds) for name, rounds in race.rounds.items()}
    return times, max((clock.calls for clock in clocks), default=1), rate
