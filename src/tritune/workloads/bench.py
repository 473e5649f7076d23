"""Measuring an op beside its default config and the vendor's functions, in one process, in turns.

Every round times each candidate once, in an order of its own, with cold caches; what counts is
each one's median. Who has given a wrong result is not timed. The limit of the hardware takes its
turns too: how fast memory is read, or a product is computed, changes with what else a machine does.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.kernels.kernel import Problem
from tritune.policy import answer_for, forced
from tritune.space import Config
from tritune.targets.device import detect
from tritune.targets.roofline import measure_limits, seconds_at_limit
from tritune.tuning.case import Expected
from tritune.tuning.timing import CpuStopwatch, Flush, stopwatch
from tritune.tuning.verify import judge
from tritune.workloads.case import OpCase
from tritune.workloads.workload import Outputs, Workload

OURS, DEFAULT, LIMIT = "ours", "default", "limit"
#: Bytes that are read, and rows and columns that are multiplied, to find the limit.
LIMIT_BYTES, LIMIT_SIZE = 2**27, 1024
LEAST_ROUNDS, MOST_ROUNDS = 7, 41
#: Of several vendor's functions, one that is this much slower than the best after a few rounds is
#: not the one to compare with.
BEHIND = 1.5
BEHIND_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One problem, measured."""

    op: str
    problem: Problem
    config: Config
    #: Where the config comes from: exact, learned or default.
    source: str
    ours_ms: float
    default_ms: float
    vendor: str | None
    vendor_ms: float | None
    #: What somebody did a part of for the vendor, and the time of the rest: not in the ratio.
    assisted: Mapping[str, float]
    #: What bounds the problem on this device, compute or memory, how many operations or bytes per
    #: second that is, and how near we are.
    limit: str
    limit_rate: float
    limit_fraction: float

    @property
    def ratio(self) -> float | None:
        """How many times faster than the vendor."""
        return None if self.vendor_ms is None else self.vendor_ms / self.ours_ms

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "problem": self.problem.fields(),
            "dtype": self.problem.fields()["dtype"],
            "config": self.config.to_json(),
            "source": self.source,
            "ours_ms": self.ours_ms,
            "default_ms": self.default_ms,
            "vendor_ms": self.vendor_ms,
            "vendor": self.vendor,
            "assisted_ms": dict(self.assisted),
            "ratio": self.ratio,
            "limit": self.limit,
            "limit_rate": self.limit_rate,
            "limit_fraction": self.limit_fraction,
        }


def summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """Geometric means, and the worst row."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return {
        "geomean_ratio": _geomean(ratios),
        "min_ratio": min(ratios, default=None),
        "geomean_tuned_over_default": _geomean([row.default_ms / row.ours_ms for row in rows]),
    }


def measure(
    workload: Workload,
    problem: Problem,
    device: torch.device,
    seconds: float = 3.0,
    vendors: bool = True,
    seed: int = 0,
) -> Row:
    """Time the op as it is called, its default config and what the vendor has, interleaved."""
    case = OpCase(workload, problem, device, seed)
    target = detect(device).target
    default = workload.kernel.default(problem, target.family, target.arch)
    answer = answer_for(workload.kernel, problem, device)
    inputs = case.inputs
    calls: dict[str, Callable[[], Any]] = {OURS: functools.partial(workload.run, inputs)}
    if answer.config != default:
        calls[DEFAULT] = functools.partial(_with, workload, default, inputs)
    rivals: dict[str, Callable[[], Any]] = {}
    if vendors:
        # Of one function torch keeps a few compiled versions, looks through them in every call, and
        # gives up compiling when there are too many. Each problem is to be the first.
        torch.compiler.reset()
        rivals = workload.vendors(inputs, compiled=_worth_compiling(workload))
    correct = _correct(case, {**calls, **rivals})
    for name in calls:
        if name not in correct:
            raise TrituneError(f"{workload.name} {problem}: the {name} config gives wrong results")
    probe = _Probe(workload, problem, device)
    racing = {**correct, LIMIT: probe.run}
    medians = _race(case, racing, rivals.keys(), seconds, random.Random(seed))
    limit_rate = probe.units / (medians[LIMIT] / 1000)
    unaided = {n: medians[n] for n in rivals if n in medians and n not in workload.assisted}
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
        assisted={n: medians[n] for n in rivals if n in medians and n in workload.assisted},
        limit=probe.bound,
        limit_rate=limit_rate,
        limit_fraction=probe.work / limit_rate / (medians[OURS] / 1000),
    )


class _Probe:
    """What does nothing but what a problem is bound by: reading memory, or a product."""

    def __init__(self, workload: Workload, problem: Problem, device: torch.device) -> None:
        work, dtype = workload.work(problem), problem.fields()["dtype"]
        limits = measure_limits(device)
        memory = seconds_at_limit(0.0, work.bytes, dtype, limits)
        self.bound = (
            "compute" if seconds_at_limit(work.flops, 0.0, dtype, limits) > memory else "memory"
        )
        if self.bound == "memory":
            self.work, self.units = work.bytes, float(LIMIT_BYTES)
            buffer = torch.ones(LIMIT_BYTES // torch.float32.itemsize, device=device)
            self.run: Callable[[], Any] = buffer.sum
        else:
            self.work, self.units = work.flops, 2.0 * LIMIT_SIZE**3
            # A type without fast products of its own is computed in a wider one.
            speeds = limits.flops_per_second
            kind = dtype if speeds.get(dtype, 0.0) > speeds["float32"] else "float32"
            square = torch.ones((LIMIT_SIZE, LIMIT_SIZE), device=device, dtype=getattr(torch, kind))
            self.run = functools.partial(torch.matmul, square, square)


def _with(workload: Workload, config: Config, inputs: dict[str, Any]) -> Outputs:
    with forced(workload.kernel, config):
        return workload.run(inputs)


def _worth_compiling(workload: Workload) -> bool:
    # Scores in memory make attention slow, however well the code around them is fused.
    return "attention" not in workload.name


def _correct(case: OpCase, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Those whose results are within the numerical rule."""
    expected = case.expected()
    return {name: call for name, call in calls.items() if _is_right(case, call, expected)}


def _is_right(case: OpCase, call: Callable[[], Any], expected: Expected) -> bool:
    case.restore()
    outputs = call()
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    return judge(case.compared(outputs), expected, ()) is None


def _race(
    case: OpCase,
    calls: Mapping[str, Callable[[], Any]],
    rivals: Any,
    seconds: float,
    rng: random.Random,
) -> dict[str, float]:
    flush = Flush(case.device)
    watches = {n: stopwatch(case.device, call, case.restore, flush) for n, call in calls.items()}
    # The same number of calls in a sample for all: the first of them finds the caches cold.
    clocks = [w for n, w in watches.items() if isinstance(w, CpuStopwatch) and n != LIMIT]
    for clock in clocks:
        clock.calls = max(each.calls for each in clocks)
    times: dict[str, list[float]] = {name: [] for name in watches}
    started = time.monotonic()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.monotonic() - started > seconds:
            break
        order = list(watches)
        rng.shuffle(order)
        for name in order:
            times[name].append(watches[name].sample_ms())
        if number + 1 == BEHIND_ROUNDS:
            best = min((min(times[n]) for n in watches if n in rivals), default=0.0)
            for name in [n for n in watches if n in rivals and min(times[n]) > BEHIND * best]:
                del watches[name]
    return {name: statistics.median(found) for name, found in times.items()}


def _geomean(values: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None
