"""Does a quick search find what an exhaustive one finds? Attention on the CPU, ten problems.

For each problem every config of a space is compiled, verified and timed; then a quick search over
the same space, in a store of its own that knows the problems searched before it, but nothing of
the exhaustive search. Then the best configs of the exhaustive search are timed in turns, in one
process, to find the best; and at last that one and the winner of the quick search are timed
again, in turns, and their medians compared. What was measured while choosing decides nothing here:
the best of many noisy times is too good to be true.

Everything goes through the tuner; nothing is timed that its processes do not time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tritune.space import Config
from tritune.store import Store
from tritune.targets.device import detect
from tritune.tuning.effort import EFFORTS, Effort
from tritune.tuning.job import Job, Settings
from tritune.tuning.measure.client import MeasurementClient
from tritune.tuning.tuner import begin_run, tune_case
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.tuning import environment, job_for

#: The part of attention's space that can be searched exhaustively within minutes.
SPACE: dict[str, tuple[Any, ...]] = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "NUM_SPLITS": (1,),
    "PRE_LOAD_V": (False,),
    "MASKED_FIRST": (False,),
    "HEADS_INSIDE": (False,),
    "micro_m": (0, 4, 6),
    "micro_n": (0, 1, 2, 4),
    "unroll": (0,),
}

PROBLEMS = (
    "heads=8 queries=512 keys=512 dtype=float32",
    "heads=8 queries=256 keys=256 dtype=float32",
    "heads=8 queries=128 keys=512 batch=2 dtype=float32",
    "heads=8 queries=512 keys=512 dtype=float32 causal=false",
    "heads=8 queries=64 keys=64 batch=8 dtype=float32 causal=false",
    "heads=8 queries=512 keys=512 dtype=bfloat16",
    "heads=8 queries=128 keys=128 batch=4 dtype=bfloat16",
    "heads=16 group=1 queries=256 keys=256 head_size=64 dtype=float32",
    "heads=16 queries=64 keys=256 batch=2 dtype=float32",
    "heads=16 group=8 queries=32 keys=1024 batch=4 dtype=float32 causal=false",
)

#: Every config, in few rounds: the best are timed again anyway.
EXHAUSTIVE = Effort("exhaustive", 10**9, 1.0, 64, 2, 3, 10.0, 8, 10**9)
#: How much slower than the best a config may be to count as found.
WITHIN = 1.03


@dataclass(frozen=True)
class Row:
    problem: str
    configs: int
    trials: int
    failures: int
    best_ms: float
    found_ms: float
    ratio: float
    best: str
    found: str
    exhaustive_seconds: float
    quick_seconds: float


def compare(text: str, folder: Path, rounds: int, jobs: int) -> Row:
    """Search one problem both ways, and time the winners against each other."""
    with Store(folder / "exhaustive.sqlite") as store:
        everything = Settings(EXHAUSTIVE, strategy="exhaustive", jobs=jobs, vendors=False)
        job, all_trials, exhaustive_seconds = search(text, store, everything)
        ranked = sorted(
            (statistics.median(ms for s in trial.samples for ms in s.times_ms), trial.config.key)
            for trial in store.trials(job.task)
            if trial.samples
        )
        configs = {trial.config.key: trial.config for trial in store.trials(job.task)}
    with Store(folder / "quick.sqlite") as store:
        quick = Settings(EFFORTS["quick"], jobs=jobs, vendors=False)
        job, trials, quick_seconds = search(text, store, quick)
        winner = store.winner(job.task)
    if winner is None:
        raise SystemExit(f"nothing worked for {text}")
    best = [configs[key] for _, key in ranked[: EXHAUSTIVE.finalists]]
    chosen = race(job, best, rounds)
    fastest = min(best, key=lambda config: chosen[config])
    medians = race(job, [fastest, winner.config], 3 * rounds)
    return Row(
        problem=text,
        configs=all_trials,
        trials=trials,
        failures=all_trials - len(ranked),
        best_ms=medians[fastest],
        found_ms=medians[winner.config],
        ratio=medians[winner.config] / medians[fastest],
        best=str(fastest),
        found=str(winner.config),
        exhaustive_seconds=exhaustive_seconds,
        quick_seconds=quick_seconds,
    )


def search(text: str, store: Store, settings: Settings) -> tuple[Job, int, float]:
    """Tune a problem over the space; the job, the trials it took, and the seconds."""
    workload, device = WORKLOADS["attention"], torch.device("cpu")
    problem, silicon = workload.parse(text), detect(device)
    store.add_device(silicon)
    job = job_for(workload, problem, device, silicon, store)
    # Which tile comes first matters only where later ones see more keys.
    space = workload.kernel.space.restricted(**SPACE, LAST_TILE_FIRST=(problem.causal,))
    points = space.on(silicon.target.family, silicon.target.arch, problem.fields())
    # The limit of the hardware is out of reach here, and a search that stops there proves nothing.
    job = replace(job, points=points, limit_ms=None)
    started = time.monotonic()
    outcome = tune_case(job, store, begin_run(store, "tuning", environment(settings)), settings)
    return job, outcome.trials, time.monotonic() - started


def race(job: Job, configs: list[Config], rounds: int) -> dict[Config, float]:
    """Medians of all configs, timed in turns to the end."""
    distinct = list(dict.fromkeys(configs))
    with MeasurementClient(job.spec, default=job.default) as client:
        times = client.time(distinct, rounds, keep=distinct)
    return {
        config: statistics.median(ms for each in of_config for ms in each)
        for config, of_config in times.items()
    }


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for text in PROBLEMS[: arguments.problems]:
            yield compare(text, Path(folder), arguments.rounds, arguments.jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=len(PROBLEMS), help="how many of the ten")
    parser.add_argument("--rounds", type=int, default=21, help="of the last comparison")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = []
    for row in rows(arguments):
        found.append(row)
        if not arguments.json:
            print(
                f"{row.problem}\n  {row.configs} configs, {row.trials} tried: "
                f"{row.found_ms:.3f} ms, best {row.best_ms:.3f} ms, ratio {row.ratio:.3f} "
                f"({row.exhaustive_seconds:.0f} s and {row.quick_seconds:.0f} s)\n"
                f"  found {row.found}\n  best  {row.best}",
                flush=True,
            )
    hits = sum(row.ratio <= WITHIN for row in found)
    share = max(row.trials / row.configs for row in found)
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in found], "hits": hits, "share": share}))
    else:
        print(
            f"within {WITHIN - 1:.0%} of the best: {hits} of {len(found)}, with at most "
            f"{share:.1%} of the trials"
        )


if __name__ == "__main__":
    main()
