"""How good are the learned policy's answers for problems that nobody tuned? Attention on the CPU.

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
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tritune.kernels.identity import identity
from tritune.kernels.kernel import Problem
from tritune.policy.describe import learn
from tritune.policy.learned import LearnedPolicy
from tritune.policy.measured import times_of
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Samples, Task, Trial, problem_text
from tritune.targets.device import detect
from tritune.tuning.effort import EFFORTS
from tritune.tuning.environment import environment
from tritune.tuning.timing import Flush, stopwatch
from tritune.tuning.tuner import Settings, begin_run
from tritune.workloads.case import OpCase
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.tuning import tune_problem

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


def time_all(problem: Problem, configs: Sequence[Config], rounds: int) -> dict[Config, list[float]]:
    """The times of all configs for a problem, taken in turns."""
    case, flush = OpCase(ATTENTION, problem, DEVICE), Flush(DEVICE)
    watches = {
        config: stopwatch(DEVICE, lambda config=config: case.run(config), case.restore, flush)
        for config in configs
    }
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--tuned", type=int, default=8, help="problems that give candidates")
    parser.add_argument("--rounds", type=int, default=11, help="times of each config")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the stores there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        policy, pool = measure(arguments, arguments.keep or Path(folder))
    found: dict[str, Any] = {
        **policy.to_json()["regret"],
        "bound": policy.bound,
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
