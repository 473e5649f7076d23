"""`tritune tune`: tune ops for problems, and show what it brought."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.cli._interrupted import ignore_interrupts
from tritune.cli._options import (
    DeviceOption,
    JobsOption,
    JsonOption,
    StoreOption,
    count_of_jobs,
    device_document,
)
from tritune.cli._terminal import exit_interrupted, print_json
from tritune.cli._tune_request import DEFAULT_MODEL, Request
from tritune.errors import TrituneError, not_allowed

if TYPE_CHECKING:
    from tritune.cli._counting_store import CountingStore
    from tritune.tuning.job import Settings
    from tritune.workloads.tuning import Tuned


@dataclass
class Result:
    """The results of a run so far."""

    #: The problems that it was asked for.
    asked: int
    location: str
    rows: list[Tuned] = field(default_factory=list)
    #: Lines about problems that were not tuned.
    learned: list[str] = field(default_factory=list)
    new_trials: int = 0
    seconds: float = 0.0
    interrupted: bool = False


def command(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="[OP]...", help="Ops to tune; all by default.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Whose problems: a preset's name, or a YAML or JSON file. "
            f"{DEFAULT_MODEL} by default."
        ),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(help='One problem of one op, such as "queries=1024 keys=1024 causal=true".'),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="The problems of a suite; see tritune bench.")
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Tune the problems that programs have met.")
    ] = False,
    pack: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tune what `tritune compile -o` packed for this device: compiles nothing.",
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16.")] = None,
    device: DeviceOption = None,
    effort: Annotated[str, typer.Option(help="quick, normal or full.")] = "quick",
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop searching after so long.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="How to search; see tritune replay.")] = None,
    jobs: JobsOption = None,
    seed: Annotated[int, typer.Option(help="Where the search begins.")] = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune ops on this machine and remember the winners.

    Configs are compiled in parallel, checked against a reference and measured in a process of
    their own. What is known already is not measured again: interrupt it, and run it again to go on.
    """
    from tritune.cli._counting_store import CountingStore
    from tritune.cli._tune_display import interruption, show

    started = time.monotonic()
    request = Request(ops or [], model, problem or [], suite, recorded, pack, dtype, device, effort)
    settings = _settings(effort, strategy, jobs, seed, budget)
    where = request.torch_device
    with CountingStore(store) as opened:
        result = _tune(request, settings, opened, quiet=as_json)
    result.seconds = time.monotonic() - started
    if as_json:
        print_json(as_document(where, result))
    elif result.rows:
        show(result)
    if result.interrupted:
        exit_interrupted(interruption(result), as_json)


def _tune(request: Request, settings: Settings, store: CountingStore, quiet: bool) -> Result:
    """Tune what is asked for, and show progress. An interrupt ends it early."""
    from tritune.cli._tune_display import Display
    from tritune.tuning.autotune.recorded_calls import tune_recorded_calls
    from tritune.workloads.tuning import Tuned, tune_all

    where = request.torch_device
    sections = request.sections()
    work, calls = request.problems(store, sections), request.calls(store)
    result = Result(len(work) + len(calls), store.location)
    if not result.asked:
        raise TrituneError(request.why_nothing(store.location))
    with Display(result.asked, settings.budget_seconds, quiet) as display:
        how = (settings, " ".join(["tritune", *sys.argv[1:]]), display.begin, display.update)
        try:
            for tuned in tune_all(work, where, store, *how, sections):
                result.rows.append(tuned)
                display.end(tuned.outcome)
            for call, outcome in tune_recorded_calls(calls, store, *how):
                result.rows.append(Tuned(call, call.problem, outcome))
                display.end(outcome)
        except KeyboardInterrupt:
            result.interrupted = True
            ignore_interrupts()
    if not result.interrupted:
        result.learned = [*_learned(store, result.rows, where), *request.not_covered(store)]
    result.new_trials = store.new_trials
    return result


def _learned(store: Any, rows: Sequence[Tuned], device: Any) -> list[str]:
    """Say for each kernel that was tuned what its other problems run with."""
    from tritune.kernels.identity import identity
    from tritune.policy.learning import saved
    from tritune.targets.device import detect
    from tritune.workloads.workload import Workload

    silicon = detect(device)
    kernels = {row.workload.kernel for row in rows if isinstance(row.workload, Workload)}
    found: dict[str, list[str]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel.name):
        version = identity(kernel, silicon.target)
        policy = saved.load(store, kernel.name, version, silicon.fingerprint)
        if policy is not None:
            found.setdefault(policy.answers, []).append(kernel.name)
    return [f"{', '.join(names)}: {answers}" for answers, names in found.items()]


def _settings(
    effort: str, strategy: str | None, jobs: int | None, seed: int, budget: float | None
) -> Settings:
    from tritune.tuning.effort import EFFORTS
    from tritune.tuning.job import Settings
    from tritune.tuning.search import DEFAULT_STRATEGY, STRATEGIES

    if effort not in EFFORTS:
        raise typer.BadParameter(not_allowed("effort", effort, EFFORTS))
    if strategy is not None and strategy not in STRATEGIES:
        raise typer.BadParameter(not_allowed("strategy", strategy, STRATEGIES))
    if budget is not None and not budget > 0:
        raise typer.BadParameter(f"budget {budget:g}, allowed: more than 0 seconds")
    return Settings(
        EFFORTS[effort],
        strategy=strategy or DEFAULT_STRATEGY,
        budget_seconds=math.inf if budget is None else budget,
        jobs=count_of_jobs(jobs) or os.cpu_count() or 1,
        seed=seed,
    )


def as_document(device: Any, result: Result) -> dict[str, Any]:
    """Return the JSON form."""
    ops: dict[str, list[dict[str, Any]]] = {}
    for row in result.rows:
        winner, outcome = row.outcome.winner, row.outcome
        ops.setdefault(row.workload.name, []).append(
            {
                "problem": row.problem.fields(),
                "default_ms": winner and winner.default_ms,
                "tuned_ms": winner and winner.ms,
                "vendor_ms": outcome.vendor_ms,
                "vendor": outcome.vendor,
                "config": winner and winner.config.to_json(),
                "trials": outcome.trials,
                "new_trials": outcome.new_trials,
                "compiles": outcome.compiles,
                "failures": dict(outcome.failures),
                "busy": outcome.busy,
            }
        )
    return {"device": device_document(device), "ops": ops, "seconds": round(result.seconds, 3)}
