"""How good are answers for problems that nobody tuned?

With `--grid N`: is any of them slower than the default? N problems of all ops, as the preset models
have them, are asked for; where the answer is not the default's config, the two race, and again with
more rounds where the answer seems to be slower. The answers are those of a store (`--store`), or of
an empty one in which so many problems of each op, drawn at random, were tuned (`--draw 3`).

Otherwise: how far are they from the best? Attention on the CPU.

1. A few of the problems are tuned, with the real tuner; their best configs are the candidates, and
   so is every config that is the default of several problems.
2. Every candidate that is valid for a problem is timed for it, all in turns: whatever the policy
   answers was measured.
3. The policy learns from these times; its regret is that of its answers for problems held out while
   it learned (five parts, each held out once), against the best candidate of each.

Times are those of whole calls with cold caches, as in tuning. The problems are drawn with a fixed
seed from sizes, dtypes and flags that servers meet, as far as one call takes milliseconds here.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Problem
from tritune.policy.learning.from_store import learn
from tritune.policy.learning.learned import LearnedPolicy
from tritune.policy.learning.measured import times_of
from tritune.policy.sources import StoreSource
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Samples, Task, Trial, problem_text
from tritune.targets.device import detect
from tritune.tuning.effort import EFFORTS
from tritune.tuning.job import Settings
from tritune.tuning.measure.environment import environment
from tritune.tuning.measure.timing import Flush, Stopwatch, stopwatch
from tritune.tuning.tuner import begin_run
from tritune.workloads.case import OpCase
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.problems.models import PRESETS
from tritune.workloads.problems.of_model import problems_of
from tritune.workloads.tuning import tune_all, tune_problem
from tritune.workloads.workload import Workload

ATTENTION = WORKLOADS["attention"]
DEVICE = torch.device("cpu")
SIZES = {
    "batch": (1, 2, 4, 8),
    "heads": (4, 8, 16, 32),
    "group": (1, 4),
    "queries": (1, 4, 16, 64, 128, 256, 512, 1024),
    "keys": (64, 128, 256, 512, 1024, 2048, 4096, 8192),
    "head_size": (64, 128),
    "dtype": ("float32", "bfloat16"),
    "causal": (True, False),
}
#: Larger problems take too long here, smaller ones nobody would notice.
FLOPS = (2e7, 2e9)
#: An answer may take this share of the default's time: more is no noise any more.
ALLOWED = 1.05
#: How often the two meet; again so often where the answer seems to be slower.
ROUNDS = (7, 15, 31)
#: What tuning one of the drawn problems may take.
DRAWN_SECONDS = 10.0
#: How many of the best configs of each tuned problem become candidates.
BEST = 3
#: A default config of so many problems is a candidate.
COMMON = 4


def problems(count: int) -> list[Problem]:
    """Different problems, drawn from all combinations of sizes."""
    found = []
    combinations = [
        dict(zip(SIZES, each, strict=True)) for each in itertools.product(*SIZES.values())
    ]
    for values in random.Random(0).sample(combinations, len(combinations)):
        if values["queries"] > values["keys"] or values["heads"] % values["group"]:
            continue
        problem = ATTENTION.problem(**values)
        if FLOPS[0] <= ATTENTION.work(problem).flops <= FLOPS[1]:
            found.append(problem)
        if len(found) == count:
            break
    return found


def drawn_problems(
    count: int,
    seed: int,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    device: torch.device | str = "cpu",
    most_flops: float = math.inf,
) -> list[tuple[str, Problem]]:
    """Draw different problems that the preset models have, as many of each op as there are."""
    rng = random.Random(seed)
    pools = []
    for op in WORKLOADS:
        pool = {
            problem
            for model in PRESETS.values()
            for dtype in dtypes
            for _, problem in problems_of(model, [op], "full", dtype, device)
            if WORKLOADS[op].work(problem).flops <= most_flops
        }
        listed = sorted(pool, key=repr)
        pools.append([(op, problem) for problem in rng.sample(listed, len(listed))])
    turns = itertools.zip_longest(*pools)
    return [each for turn in turns for each in turn if each is not None][:count]


def candidates(store: Store, tuned: Sequence[Problem], run: str, jobs: int) -> list[Config]:
    """The best configs of some problems, found by the tuner."""
    settings = Settings(EFFORTS["quick"], jobs=jobs, vendors=False)
    found: dict[Config, None] = {}
    for problem in tuned:
        outcome = tune_problem(ATTENTION, problem, DEVICE, store, run, settings)
        times = times_of(store.trials(outcome.task))
        for config in sorted(times, key=lambda config: (times[config], config.key))[:BEST]:
            found.setdefault(config)
    return list(found)


def time_all(
    problem: Problem, configs: Sequence[Config], rounds: int, workload: Workload = ATTENTION
) -> dict[Config, list[float]]:
    """The times of all configs for a problem, taken in turns."""
    case, flush = OpCase(workload, problem, DEVICE), Flush(DEVICE)
    watches: dict[Config, Stopwatch] = {}
    for config in configs:
        # As many calls in a sample for all: the first of them finds the caches cold.
        calls = next(iter(watches.values())).calls if watches else None
        watches[config] = stopwatch(
            DEVICE, lambda config=config: case.run(config), case.restore, flush, calls
        )
    times: dict[Config, list[float]] = {config: [] for config in configs}
    for number in range(rounds):
        order = random.Random(number).sample(list(watches), len(watches))
        for config in order:
            times[config].append(watches[config].sample_ms())
    return times


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[LearnedPolicy, int]:
    """Fill a store, and learn from it; how many candidates there were, too."""
    silicon, kernel = detect(DEVICE), ATTENTION.kernel
    target = silicon.target
    asked = problems(arguments.problems)
    settings = Settings(EFFORTS["quick"])
    with Store(folder / "tuned.sqlite") as tuned, Store(folder / "timed.sqlite") as timed:
        for store in (tuned, timed):
            store.add_device(silicon)
        step = max(1, len(asked) // arguments.tuned)
        run = begin_run(tuned, "regret", environment(settings))
        found = candidates(tuned, asked[::step][: arguments.tuned], run, arguments.jobs)
        defaults = [kernel.default(problem, target.family, target.arch) for problem in asked]
        common = [config for config, count in Counter(defaults).items() if count >= COMMON]
        pool = list(dict.fromkeys([*common, *found]))
        run = begin_run(timed, "regret", environment(settings))
        for problem, default in zip(asked, defaults, strict=True):
            points = kernel.space.on(target.family, target.arch, problem.fields())
            configs = [config for config in pool if config in points]
            text = problem_text(problem.fields())
            task = Task(kernel.name, identity(kernel, target), text, silicon.fingerprint)
            for config, times in time_all(problem, configs, arguments.rounds).items():
                timed.add_trial(trial(task, config, run, times, config == default))
        policy = learn(timed, kernel, silicon)
    if policy is None or policy.regret is None:
        raise SystemExit("nothing could be learned: give it more problems")
    return policy, len(pool)


def trial(task: Task, config: Config, run: str, times: list[float], default: bool) -> Trial:
    when = datetime.datetime.now(datetime.timezone.utc).isoformat()
    samples = tuple(Samples(run, "search", number, (ms,)) for number, ms in enumerate(times))
    return Trial(task, config, run, when, default=default, samples=samples)


@dataclass(frozen=True)
class Slower:
    """An answer that is not the default, and its time as a share of the default's."""

    op: str
    problem: Problem
    source: str
    share: float


def tune_drawn(store: Store, ops: Sequence[str], each: int, seed: int, jobs: int) -> None:
    """Tune so many problems of each of these ops, drawn at random; then learn."""
    drawn = drawn_problems(10**6, seed, most_flops=FLOPS[1])
    work = [
        (WORKLOADS[op], problem)
        for op in ops
        for problem in [problem for name, problem in drawn if name == op][:each]
    ]
    budget = DRAWN_SECONDS * len(work)
    settings = Settings(EFFORTS["quick"], jobs=jobs, vendors=False, budget_seconds=budget)
    for tuned in tune_all(work, DEVICE, store, settings, "regret --draw"):
        print(f"tuned {tuned.workload.name} {problem_text(tuned.problem.fields())}", flush=True)


def compare_with_default(
    location: str | None, count: int, seed: int
) -> tuple[list[Slower], Counter[str]]:
    """Race every answer that is not the default's config with the default."""
    source = StoreSource(location)
    target, found, sources = detect(DEVICE).target, [], Counter[str]()
    for op, problem in drawn_problems(count, seed, most_flops=FLOPS[1]):
        kernel = WORKLOADS[op].kernel
        answer = source.kernel_policy(kernel, detect(DEVICE)).answer(problem)
        default = kernel.default(problem, target.family, target.arch)
        same = answer.config == default
        sources[f"{answer.source}, the default's config" if same else answer.source] += 1
        if not same:
            raced = (op, problem, answer.config, default)
            share = raced_share(*raced)
            if share > ALLOWED:
                share = min(share, in_new_process(*raced))
            found.append(Slower(op, problem, answer.source, share))
    return found, sources


def in_new_process(*raced: Any) -> float:
    """Return the share that another process measures.

    Where things lie in memory is a process's luck: what takes 20 us in one takes 33 in another. As
    in the store's rule, a config is slower only if it is slower in both.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(raced_share, *raced).result()


def raced_share(op: str, problem: Problem, config: Config, default: Config) -> float:
    """Return a config's time as a share of the default's: the median of pairs of samples."""
    workload, share = WORKLOADS[op], 0.0
    for rounds in ROUNDS:
        times = time_all(problem, [config, default], rounds, workload)
        pairs = zip(times[config], times[default], strict=True)
        share = statistics.median(ms / default_ms for ms, default_ms in pairs)
        if share <= ALLOWED:
            break
    return share


def grid(arguments: argparse.Namespace) -> None:
    """Print what was answered, and each answer that is slower than the default; fail if any is."""
    with tempfile.TemporaryDirectory() as folder:
        location = arguments.store
        if arguments.draw:
            location = location or str(Path(folder) / "drawn.sqlite")
            with Store(location) as store:
                ops = arguments.op or list(WORKLOADS)
                tune_drawn(store, ops, arguments.draw, arguments.seed, arguments.jobs)
        found, sources = compare_with_default(location, arguments.grid, arguments.seed)
    worst = max(found, key=lambda each: each.share, default=None)
    slower = [each for each in found if each.share > ALLOWED]
    if arguments.json:
        print(json.dumps({"sources": sources, "slower": len(slower), "raced": len(found)}))
    else:
        for name, number in sorted(sources.items()):
            print(f"{number:5} answers: {name}")
        for each in sorted(slower, key=lambda each: -each.share):
            print(f"{each.share:5.2f} {each.op} {problem_text(each.problem.fields())}")
        print(
            f"{len(found)} answers were raced with the default; {len(slower)} are slower by more "
            f"than {ALLOWED - 1:.0%}" + (f", the worst takes {worst.share:.2f}" if worst else "")
        )
    if slower:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=8, help="problems that give candidates")
    parser.add_argument("--rounds", type=int, default=11, help="times of each config")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the stores there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--grid", type=int, metavar="N", help="ask N problems of all ops")
    parser.add_argument("--store", help="whose answers; TRITUNE_STORE by default")
    parser.add_argument("--draw", type=int, metavar="N", help="tune N problems of each op first")
    parser.add_argument("--op", action="append", choices=WORKLOADS, help="of these; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    arguments = parser.parse_args()
    if arguments.grid:
        grid(arguments)
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        policy, pool = measure(arguments, arguments.keep or Path(folder))
    found: dict[str, Any] = {
        **policy.to_json()["regret"],
        "candidates": pool,
        "seconds": round(time.monotonic() - started, 1),
    }
    if arguments.json:
        print(json.dumps(found))
    else:
        print("\n".join(policy.describe()))
        print(f"{pool} candidates, {found['seconds']} s")


if __name__ == "__main__":
    main()
