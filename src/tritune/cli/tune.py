"""`tritune tune`: the main job. Tunes ops for problems and shows what it brought."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritune.cli._interrupted import STATUS, finish_in_peace
from tritune.errors import TrituneError, not_allowed

if TYPE_CHECKING:
    from tritune.kernels.kernel import Problem
    from tritune.pack.contents import Section
    from tritune.tuning.autotune.recorded_calls import RecordedCall
    from tritune.workloads.tuning import Tuned
    from tritune.workloads.workload import Workload

    Sections = dict[tuple[str, Problem], Section]

DEFAULT_MODEL = "llama-3-8b"


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
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1; what is here by default.")
    ] = None,
    effort: Annotated[str, typer.Option(help="quick, normal or full.")] = "quick",
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop searching after so long.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="How to search; see tritune replay.")] = None,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", help="Processes that compile; one per core.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Where the search begins.")] = 0,
    store: Annotated[
        str | None, typer.Option(help="A file, or a database's URL; TRITUNE_STORE by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tune ops on this machine and remember the winners.

    Configs are compiled in parallel, checked against a reference and measured in a process of
    their own. What is known already is not measured again: interrupt it, and run it again to go on.
    """
    from tritune.cli._counting_store import CountingStore
    from tritune.cli._tune_display import Display, interruption, table
    from tritune.tuning.autotune.recorded_calls import tune_recorded_calls
    from tritune.workloads.tuning import Tuned, tune_all

    started = time.monotonic()
    request = _Request(
        ops or [], model, problem or [], suite, recorded, pack, dtype, device, effort
    )
    settings = _settings(effort, strategy, jobs, seed, budget)
    where = request.torch_device
    rows: list[Tuned] = []
    interrupted = False
    with CountingStore(store) as opened:
        sections = request.sections()
        work = request.problems(opened, sections)
        calls = request.calls(opened)
        asked = len(work) + len(calls)
        if not asked:
            raise TrituneError(request.why_nothing(opened.location))
        with Display(asked, budget, quiet=as_json) as display:
            command = " ".join(["tritune", *sys.argv[1:]])
            watching = (display.begin, display.update)
            try:
                for tuned in tune_all(work, where, opened, settings, command, *watching, sections):
                    rows.append(tuned)
                    display.end(tuned.outcome)
                for call, outcome in tune_recorded_calls(
                    calls, opened, settings, command, *watching
                ):
                    rows.append(Tuned(call, call.problem, outcome))
                    display.end(outcome)
            except KeyboardInterrupt:
                interrupted = True
                finish_in_peace()
        learned = []
        if not interrupted:
            learned = [*_learned(opened, rows, where), *request.not_covered(opened)]
        location, new = opened.location, opened.new_trials
    seconds = time.monotonic() - started
    if as_json:
        print(json.dumps(as_document(where, rows, seconds), indent=2))
    elif rows:
        table(rows, location, seconds, asked, learned, new)
    if interrupted:
        words = interruption(len(rows), asked, new, location)
        print(words, file=sys.stderr if as_json else sys.stdout)
        raise typer.Exit(STATUS)


def _learned(store: Any, rows: Sequence[Tuned], device: Any) -> list[str]:
    """Say for each kernel that was tuned what its other problems run with."""
    from tritune.kernels.identity import identity
    from tritune.policy import saved
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


@dataclass(frozen=True)
class _Request:
    """What was asked for; its methods turn words into what they name, or refuse in one line."""

    ops: Sequence[str]
    model: str | None
    texts: Sequence[str]
    suite: str | None
    recorded: bool
    pack: Path | None
    dtype: str | None
    device: str | None
    effort: str

    @property
    def torch_device(self) -> Any:
        from tritune.cli._devices import torch_device

        return torch_device(self.device)

    def sections(self) -> Sections:
        """What the pack is about, by op and problem; nothing without one."""
        from tritune.workloads.tuning_from_pack import unpack

        self._check()
        return {} if self.pack is None else unpack(self.pack, self.torch_device, self.ops)

    def _check(self) -> None:
        from tritune.workloads.catalog import workload_named

        for op in self.ops:
            workload_named(op)
        named = (self.model, self.suite, self.pack)
        ways = (self.recorded, bool(self.texts), *(way is not None for way in named))
        if sum(ways) > 1:
            raise typer.BadParameter(
                "--model, --problem, --suite, --recorded and --pack exclude each other"
            )

    def problems(self, store: Any, sections: Sections) -> list[tuple[Workload, Problem]]:
        from tritune.workloads.catalog import WORKLOADS
        from tritune.workloads.problems.models import load_model
        from tritune.workloads.problems.of_model import problems_of
        from tritune.workloads.problems.suites import suite
        from tritune.workloads.tuning import problems_met

        if self.pack is not None:
            return [(WORKLOADS[op], problem) for op, problem in sections]
        if self.recorded:
            return problems_met(store, self.torch_device, self.ops)
        if self.suite is not None:
            chosen = suite(self.suite)
            return [(WORKLOADS[op], each) for op, each in chosen if not self.ops or op in self.ops]
        if self.texts:
            if len(self.ops) != 1:
                raise typer.BadParameter("--problem needs exactly one op")
            workload = WORKLOADS[self.ops[0]]
            return [(workload, workload.parse(text)) for text in self.texts]
        found = problems_of(
            load_model(self.model or DEFAULT_MODEL),
            list(self.ops) or None,
            effort=self.effort,
            dtype=self.dtype,
            device=self.torch_device,
        )
        return [(WORKLOADS[name], each) for name, each in found]

    def why_nothing(self, location: str) -> str:
        """What is said if there is no problem to tune."""
        of_ops = f" of {', '.join(self.ops)}" if self.ops else ""
        if self.recorded:
            return (
                f"no problem{of_ops} is recorded for {self.torch_device} in {location}: run a "
                "program with `tritune run --record SCRIPT`, or with TRITUNE_MODE=record"
            )
        return f"there is no problem{of_ops} in what was asked for"

    def not_covered(self, store: Any) -> list[str]:
        """Say which problems of a server with the model are not tuned, if a model was meant."""
        from tritune.workloads.problems.models import load_model
        from tritune.workloads.problems.tuned_share import count_tuned, describe_untuned

        if self.pack is not None or self.recorded or self.suite is not None or self.texts:
            return []
        model = load_model(self.model or DEFAULT_MODEL)
        counts = count_tuned(model, store, self.torch_device, self.ops or None)
        said = describe_untuned(model, counts)
        return [f"{said} (--effort and --dtype tune more of them)"] if said else []

    def calls(self, store: Any) -> list[RecordedCall]:
        """The calls of other kernels that programs have met: see `tritune run --record`."""
        from tritune.tuning.autotune.recorded_calls import recorded_calls

        if not self.recorded or self.ops:
            return []
        here = self.torch_device.type
        return [call for call in recorded_calls(store) if call.device.type == here]


def _settings(
    effort: str, strategy: str | None, jobs: int | None, seed: int, budget: float | None
) -> Any:
    from tritune.tuning.effort import EFFORTS
    from tritune.tuning.search import DEFAULT_STRATEGY, STRATEGIES
    from tritune.tuning.tuner import Settings

    if effort not in EFFORTS:
        raise typer.BadParameter(not_allowed("effort", effort, EFFORTS))
    if strategy is not None and strategy not in STRATEGIES:
        raise typer.BadParameter(not_allowed("strategy", strategy, STRATEGIES))
    if jobs is not None and jobs < 1:
        raise typer.BadParameter(f"jobs {jobs}, allowed: 1 and more")
    if budget is not None and not budget > 0:
        raise typer.BadParameter(f"budget {budget:g}, allowed: more than 0 seconds")
    return Settings(
        EFFORTS[effort],
        strategy=strategy or DEFAULT_STRATEGY,
        budget_seconds=math.inf if budget is None else budget,
        jobs=jobs or os.cpu_count() or 1,
        seed=seed,
    )


def as_document(device: Any, rows: Sequence[Tuned], seconds: float) -> dict[str, Any]:
    """The JSON form."""
    from tritune.targets.device import detect

    silicon = detect(device)
    ops: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
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
    return {
        "device": {
            "name": silicon.name,
            "target": str(silicon.target),
            "fingerprint": silicon.fingerprint,
        },
        "ops": ops,
        "seconds": round(seconds, 3),
    }
