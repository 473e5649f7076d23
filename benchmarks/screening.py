"""Screening attention's space for eight GPUs of two vendors, none of which has to be here.

Without options: every candidate for fp16, head 128, causal, on each target; what became of them,
and how many a core screens in a second. Parameters that decide nothing but the order of programs
(which head or tile comes first) are at their defaults unless --orders is given: they multiply the
candidates by 16 and change a few index computations. Results are kept in --store, so it can be
stopped and started again, or run for one target at a time.

--winners: whether the best configs of real tunings survive screening, while a quarter of all
candidates is dropped. Each distinct winner (target, dtype, head, causal, and all parameters that
the record and the space have in common) is screened as it was recorded, and where that is dropped,
with the other register budgets that the space has for it; the part that is dropped is counted over
--space candidates of each kind of code.

--compare N: N candidates for the first target, compiled one by one with `triton.compile` in an
empty cache, and screened from nothing with -j processes; in turns, by parts, in wall-clock time.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import triton
from benchmarks.recorded_winners import RecordedWinner, winners
from benchmarks.timing import at_least_one

from tritune.screening.candidates import candidates, family
from tritune.screening.capture import absent_device, launches_of, triton_target
from tritune.screening.screen import Screened, screen
from tritune.screening.task import ScreeningTask
from tritune.space import Config
from tritune.store import Store
from tritune.targets.target import Target
from tritune.workloads.catalog import WORKLOADS

ATTENTION = WORKLOADS["attention"]
TARGETS = (
    "cuda:80", "cuda:90", "cuda:100", "cuda:120",
    "hip:gfx90a", "hip:gfx942", "hip:gfx950", "hip:gfx1100",
)  # fmt: skip
ORDERS = ("PACK_HEADS", "MASKED_FIRST", "HEADS_INSIDE", "LAST_TILE_FIRST")
PARTS = 4


def task_for(
    target: Target, dtype: str, head_size: int, causal: bool, orders: bool = False
) -> ScreeningTask:
    """The whole space for one kind of code; of a problem that is long enough for every tile."""
    problem = ATTENTION.parse(
        f"queries=4096 keys=4096 dtype={dtype} head_size={head_size} causal={causal}"
    )
    kernel = ATTENTION.kernel
    default = kernel.default(problem, target.family, target.arch)
    space = kernel.space
    if not orders:
        space = space.restricted(**{name: default[name] for name in ORDERS})
    return ScreeningTask(ATTENTION, problem, target, space)


def screen_targets(options: argparse.Namespace) -> dict[str, Any]:
    """The table, printed as it grows."""
    options.say(
        f"{'target':12} {'in space':>8} {'candidates':>10} {'compiled':>8} {'impossible':>10} "
        f"{'failed':>6} {'spilling':>8} {'duplicate':>9} {'left':>6} {'per second and core':>20}"
    )
    found = {}
    with Store(options.store) as store:
        for name in options.targets:
            target = Target.parse(name)
            task = task_for(target, "float16", 128, True, options.orders)
            screened = screen(task, store, options.space, options.jobs)
            found[name] = document(screened)
            options.say(row_of(name, found[name]))
    return found


def document(screened: Screened) -> dict[str, Any]:
    task = screened.task
    whole = task.workload.kernel.space.on(
        task.target.family, task.target.arch, task.problem.fields()
    )
    seconds = screened.compile_seconds
    return {
        "space": whole.size(),
        **screened.to_json(),
        "core_seconds": seconds,
        "per_second_and_core": screened.candidates / seconds if seconds else None,
    }


def row_of(name: str, row: dict[str, Any]) -> str:
    rejected = row["rejected"]
    return (
        f"{name:12} {row['space']:8} {row['candidates']:10} {row['compiled']:8} "
        f"{rejected['out_of_resources']:10} {rejected['compile_error'] + rejected['timeout']:6} "
        f"{rejected['spills']:8} {rejected['duplicate']:9} {row['left']:6} "
        f"{row['per_second_and_core'] or 0:20.2f}"
    )


def screen_winners(options: argparse.Namespace) -> dict[str, Any]:
    """How many of the recorded winners survive, and how many candidates do not."""
    recorded = winners(options.dejavu, options.aotriton)
    distinct = {(winner.kind, winner.values): winner for winner in recorded}
    changed, lost = list[str](), list[str]()
    dropped: dict[str, float] = {}
    screened = left = 0
    with Store(options.store) as store:
        for kind in sorted({w.kind for w in recorded}, key=str):
            task = task_for(*kind)
            mine = [winner for winner in distinct.values() if winner.kind == kind]
            some = candidates(task.points, options.space, task.default)
            # Both at once, so that processes start once; what follows finds it in the store.
            as_recorded = [config for config in map(task_config(task), mine) if config]
            screen_only(task, [*as_recorded, *some], store, options.jobs)
            found = fates(task, mine, store, options.jobs)
            changed += found["changed"]
            lost += found["lost"]
            sample = screen_only(task, some, store, options.jobs)
            label = f"{kind[0]} {kind[1]} head {kind[2]}{' causal' if kind[3] else ''}"
            dropped[label] = 1 - len(sample.left) / sample.candidates
            screened, left = screened + sample.candidates, left + len(sample.left)
            options.say(
                f"{label:40} {len(mine):3} distinct winners, {len(found['lost'])} lost, "
                f"{dropped[label]:6.1%} of {sample.candidates} candidates dropped"
            )
    survived = len(distinct) - len(lost)
    for each in changed:
        options.say(f"survives with another register budget: {each}")
    for each in lost:
        options.say(f"lost: {each}")
    options.say(
        f"{survived} of {len(distinct)} distinct winners of {len(recorded)} problems survive "
        f"({survived / len(distinct):.1%}), {survived - len(changed)} of them as recorded; "
        f"{1 - left / screened:.1%} of {screened} candidates are dropped"
    )
    return {
        "winners": len(distinct),
        "survived": survived,
        "as_recorded": survived - len(changed),
        "changed": changed,
        "lost": lost,
        "dropped": dropped,
        "dropped_of_all": 1 - left / screened,
    }


def screen_only(
    task: ScreeningTask, configs: Iterable[Config], store: Store, jobs: int
) -> Screened:
    return screen(task, store, jobs=jobs, only=list(dict.fromkeys(configs)))


def task_config(task: ScreeningTask) -> Callable[[RecordedWinner], Config | None]:
    """What makes a winner a candidate, as it was recorded; None where the space has no such one."""
    points, default = task.points, task.default.as_kwargs()

    def config_of(winner: RecordedWinner) -> Config | None:
        values = {**default, **dict(winner.values)}
        config = Config.of(**{name: values[name] for name in points.parameters})
        return config if config in points else None

    return config_of


def fates(
    task: ScreeningTask, mine: Sequence[RecordedWinner], store: Store, jobs: int
) -> dict[str, list[str]]:
    """Winners that survive with another register budget only, and those that do not at all.

    What is the same as a config that is left survives.
    """
    found: dict[str, list[str]] = {"changed": [], "lost": []}
    reasons = _reasons(task, list(map(task_config(task), mine)), store, jobs)
    dropped = [winner for winner, why in zip(mine, reasons, strict=True) if why]
    for winner in dropped:
        relatives = relatives_of(task, winner)
        why = set(_reasons(task, relatives, store, jobs)) if relatives else {"not in the space"}
        fate = "changed" if None in why else "lost"
        words = ", ".join(sorted(str(each) for each in why if each is not None))
        found[fate].append(f"{winner.kind[0]} {winner.kind[1]} {dict(winner.values)}: {words}")
    return found


def _reasons(
    task: ScreeningTask, configs: Sequence[Config | None], store: Store, jobs: int
) -> list[str | None]:
    """Why each is dropped; None for what survives."""
    known = [config for config in configs if config is not None]
    screened = screen_only(task, known, store, jobs)
    why = [screened.reason(each) if each else "not in the space" for each in configs]
    return [None if reason == "duplicate" else reason for reason in why]


def relatives_of(task: ScreeningTask, winner: RecordedWinner) -> list[Config]:
    """The candidates with a winner's parameters: as it was recorded, and with other budgets."""
    values = {**task.default.as_kwargs(), **dict(winner.values)}
    points = task.points
    config = Config.of(**{name: values[name] for name in points.parameters})
    return [each for each in family(config, points) if each in points]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of compiling one by one and of screening, for the same candidates."""
    target = Target.parse(options.targets[0])
    task = task_for(target, "float16", 128, True, options.orders)
    configs = candidates(task.points, options.compare, task.default)
    size = -(-len(configs) // PARTS)
    totals = {"one by one": 0.0, "screening": 0.0}
    with tempfile.TemporaryDirectory(prefix="tritune-screening-") as folder:
        for start in range(0, len(configs), size):
            part = configs[start : start + size]
            totals["one by one"] += one_by_one(task, part, Path(folder) / f"cache-{start}")
            began = time.perf_counter()
            with Store(Path(folder) / f"{start}.sqlite") as store:
                screen(task, store, jobs=options.jobs, only=part)
            totals["screening"] += time.perf_counter() - began
            done = start + len(part)
            options.say(f"{done} of {len(configs)}: {shares(totals)}")
    return {"target": str(target), "candidates": len(configs), "seconds": totals}


def shares(totals: dict[str, float]) -> str:
    words = [f"{name} {seconds:.1f} s" for name, seconds in totals.items()]
    return ", ".join(words) + f", {totals['screening'] / totals['one by one']:.1%} of the time"


def one_by_one(task: ScreeningTask, configs: Sequence[Config], cache: Path) -> float:
    """Seconds of compiling configs as a launch on the target would."""
    inputs = ATTENTION.empty_inputs(task.problem)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    began = time.perf_counter()
    for config in configs:
        with absent_device(task.target):
            sources = launches_of(ATTENTION, inputs, config)
        for source in sources:
            try:
                triton.compile(
                    source.ast, target=triton_target(task.target), options=vars(source.options)
                )
            except Exception as error:
                print(f"{config}: {type(error).__name__}", file=sys.stderr)
    return time.perf_counter() - began


def whole_or_count(text: str) -> int | None:
    return None if text == "full" else at_least_one(text)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--space", type=whole_or_count, default=None, metavar="full|N")
    parser.add_argument("-j", "--jobs", type=at_least_one, default=os.cpu_count() or 1)
    parser.add_argument("--orders", action="store_true", help="all orders of programs too")
    parser.add_argument("--store", default="screening.sqlite", help="where results are kept")
    parser.add_argument("--winners", action="store_true")
    parser.add_argument("--dejavu", type=Path, help="a folder with triton-dejavu's caches")
    parser.add_argument("--aotriton", type=Path, help="AOTriton's tuning database")
    parser.add_argument("--compare", type=at_least_one, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(arguments)
    options.say = functools.partial(
        print, file=sys.stderr if options.json else sys.stdout, flush=True
    )
    if options.winners and options.dejavu is None and options.aotriton is None:
        parser.error("--winners needs --dejavu, --aotriton or both")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.compare is not None:
        result = compare(options)
    elif options.winners:
        result = screen_winners(options)
    else:
        result = screen_targets(options)
    if options.json:
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
