"""Search strategies on recorded spaces: ours beside those of kernel_tuner, with equal budgets.

Each strategy runs on each recorded space with each seed, for 200 trials. A trial is one config that
was not tried before; one that failed when it was recorded counts as well. The table shows the
fraction of the optimum, the recorded best time over the best found, after 25, 50, 100 and 200
trials, as the mean over spaces and seeds. kernel_tuner runs in its own simulation mode, from cache
files made of the same results, with the default options of each strategy; a strategy that ends by
itself before its budget keeps what it has found. With --warm, ours begin from the other recorded
spaces with the same parameters.

kernel_tuner is not among the requirements: pip install kernel_tuner==1.5
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from tritune.errors import TrituneError
from tritune.store.formats import t4
from tritune.store.formats.recorded import Recorded
from tritune.tuning.search import DEFAULT_STRATEGY, STRATEGIES
from tritune.tuning.search.replay import BUDGETS, ReplayJob, mean_fractions, priors_for, replay_all

TRIALS = BUDGETS[-1]
FAILED = "RuntimeFailedConfig"

#: Brute force looks at configs in the order of the space: no budget means anything to it.
NOT_COMPARED = ("brute_force",)


@dataclass(frozen=True)
class Simulation:
    """A recorded space as kernel_tuner wants it: a cache file, and what is in it."""

    recorded: Recorded
    cache: Path

    @classmethod
    def of(cls, recorded: Recorded, folder: Path) -> Simulation:
        path = folder / f"{recorded.name}.json"
        path.write_text(json.dumps(as_cache(recorded)))
        return cls(recorded, path)

    def run(self, strategy: str, seed: int) -> list[float]:
        """The fraction of the optimum after each trial."""
        import kernel_tuner
        from constraint import FunctionConstraint

        names = list(self.recorded.parameters)
        known = {tuple(config[name] for name in names) for config in self.recorded.results}
        random.seed(seed)
        np.random.seed(seed)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results, _ = kernel_tuner.tune_kernel(
                self.recorded.kernel,
                "",
                1,
                [],
                {name: list(values) for name, values in self.recorded.parameters.items()},
                restrictions=[FunctionConstraint(lambda *values: values in known)],
                strategy=strategy,
                strategy_options={"max_fevals": TRIALS},
                cache=str(self.cache),
                simulation_mode=True,
                lang="C",
                quiet=True,
                seed=seed,
            )
        return self._fractions(results, names)

    def _fractions(self, results: Sequence[dict[str, Any]], names: list[str]) -> list[float]:
        tried: set[str] = set()
        best, fractions = 0.0, []
        for result in results:
            key = cache_key(result, names)
            if key in tried:
                continue
            tried.add(key)
            if isinstance(result["time"], (int, float)):
                best = max(best, (self.recorded.best_ms or 0.0) / result["time"])
            fractions.append(best)
        return (fractions + [best] * TRIALS)[:TRIALS]


def cache_key(values: Any, names: Sequence[str]) -> str:
    return ",".join(str(values[name]) for name in names)


def as_cache(recorded: Recorded) -> dict[str, Any]:
    """The results in the form of kernel_tuner's cache files."""
    names = list(recorded.parameters)
    entries = {}
    for config, ms in recorded.results.items():
        values = config.as_kwargs()
        entries[cache_key(values, names)] = {
            **{name: values[name] for name in names},
            "time": FAILED if ms is None else ms,
            **({"__error__": FAILED} if ms is None else {}),
            **{f"{part}_time": 0 for part in ("compile", "verification", "benchmark")},
            **{f"{part}_time": 0 for part in ("strategy", "framework")},
        }
    return {
        "device_name": recorded.device,
        "kernel_name": recorded.kernel,
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": {name: list(values) for name, values in recorded.parameters.items()},
        "objective": "time",
        "cache": entries,
    }


def theirs(spaces: Sequence[Recorded], wanted: Sequence[str], seeds: int) -> dict[str, Any]:
    """The mean curve of each of kernel_tuner's strategies, or why it cannot run here."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        simulations = [Simulation.of(space, Path(folder)) for space in spaces]
        for name in wanted:
            print(f"kernel_tuner: {name}", file=sys.stderr)
            try:
                curves = [one.run(name, seed) for one in simulations for seed in range(seeds)]
            except Exception as error:
                # Some need packages that are not there, or other versions of them.
                found[name] = f"not run: {type(error).__name__}: {' '.join(str(error).split())}"
            else:
                found[name] = np.mean(curves, axis=0).tolist()
    return found


def strategies_of_kernel_tuner() -> list[str]:
    try:
        from kernel_tuner.interface import strategy_map
    except ImportError:
        raise SystemExit(
            "kernel_tuner is not installed: pip install kernel_tuner==1.5, or give --ours"
        ) from None
    return [name for name in strategy_map if name not in NOT_COMPARED]


def ours(
    spaces: Sequence[Recorded], warm: bool, wanted: Sequence[str], seeds: int
) -> dict[str, Any]:
    jobs = [ReplayJob(space, priors_for(space, spaces) if warm else ()) for space in spaces]
    curves = replay_all(jobs, wanted, seeds)
    return {name: mean_fractions([c for c in curves if c.strategy == name]) for name in wanted}


def at_budgets(curve: Any) -> Any:
    return curve if isinstance(curve, str) else {str(n): curve[n - 1] for n in BUDGETS}


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'':38}" + "".join(f"{budget:>8}" for budget in BUDGETS)]
    for group, rows in results.items():
        for name, row in rows.items():
            values = row if isinstance(row, str) else "".join(f"{v:8.3f}" for v in row.values())
            default = " (default)" if group != "kernel_tuner" and name == DEFAULT_STRATEGY else ""
            lines.append(f"{f'{group}: {name}{default}':38}{values}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="recorded spaces as T4 files")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--kernel-tuner", nargs="*", metavar="STRATEGY", help="these of theirs")
    parser.add_argument("--ours", action="store_true", help="leave kernel_tuner out")
    parser.add_argument("--warm", action="store_true", help="ours with prior knowledge as well")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rivals = [] if options.ours else options.kernel_tuner or strategies_of_kernel_tuner()
    try:
        spaces = [t4.read(path) for path in options.files]
    except TrituneError as error:
        parser.error(str(error))
    curves = {"tritune": ours(spaces, False, options.strategies, options.seeds)}
    if options.warm:
        curves["tritune, warm"] = ours(spaces, True, options.strategies, options.seeds)
    if rivals:
        curves["kernel_tuner"] = theirs(spaces, rivals, options.seeds)
    results = {
        group: {name: at_budgets(curve) for name, curve in found.items()}
        for group, found in curves.items()
    }
    if options.json:
        print(json.dumps({"seeds": options.seeds, "trials": TRIALS, **results}, indent=2))
    else:
        print(table(results))


if __name__ == "__main__":
    main()
