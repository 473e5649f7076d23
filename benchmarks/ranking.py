"""Does the ranking model put the winners of real tunings among its best candidates?

For each kind of code (target, dtype, head, causal) all tiles of attention's space (block sizes,
warps, stages) are compiled and screened, with every register budget and the other parameters at
their defaults; a tile is as good as its best budget. For each recorded problem, the tiles that are
left are ranked by the model, and the recorded winner's place among them is what counts. A winner
that the space does not have counts as missed.

Two ways to less to compile: --space N estimates the places from N tiles that are drawn evenly.
--budgets largest gives a thread as many registers as it can have, which is harsh on tiles that take
a few more than would let a second block in.

Builds are kept in --store, so it can be stopped and started again; those that screening.py left
there are used. The recorded kernels align causal masks at the first query and key, which matters
where there are more of the one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.recorded_winners import TILE, RecordedWinner, winners
from benchmarks.screening import ATTENTION, whole_or_count
from benchmarks.screening import task_for as kind_of_code
from benchmarks.timing import at_least_one

from tritune.kernels.attention import AttentionProblem
from tritune.screening.launch_work.attention import attention_work
from tritune.screening.rejection import BUDGET_OPTIONS, binary_facts, register_budget
from tritune.screening.screen import Screened, screen
from tritune.screening.task import ScreeningTask
from tritune.space import Config
from tritune.store import Store
from tritune.targets.limits import Limits, limits_of
from tritune.targets.ranking import estimate

#: Parameters that decide the tile or how many registers a thread may have.
VARIED = (*TILE, "maxnreg", "waves_per_eu")
BEST, GOOD = 0.20, 1 / 3

Tile = tuple[int, ...]


def task_for(kind: tuple[Any, ...], blocks: Sequence[int] | None = None) -> ScreeningTask:
    """All tiles for one kind of code, or those of some blocks, at the default's other values."""
    whole = kind_of_code(*kind)
    fixed: dict[str, Any] = {
        name: value for name, value in whole.default.as_kwargs().items() if name not in VARIED
    }
    if blocks:
        fixed |= {"BLOCK_M": blocks, "BLOCK_N": blocks}
    return replace(whole, space=ATTENTION.kernel.space.restricted(**fixed))


def configs_of(task: ScreeningTask, budgets: str) -> list[Config]:
    """The tiles, each with its largest register budget or with all of them."""
    limits = limits_of(task.target)
    largest: dict[frozenset[Any], Config] = {}
    # Of equal budgets, the first is the compiler's own.
    for config in (everything := list(task.points.configs())):
        tile = frozenset(item for item in config.values if item[0] not in BUDGET_OPTIONS)
        best = largest.setdefault(tile, config)
        if (register_budget(config, limits) or 0) > (register_budget(best, limits) or 0):
            largest[tile] = config
    return everything if budgets == "all" else list(largest.values())


def some_of(configs: Sequence[Config], count: int | None, seed: int = 0) -> list[Config]:
    """All of them, or those of `count` tiles that are drawn evenly."""
    tiles = sorted({_tile(config) for config in configs})
    # Those of a smaller count are among those of a larger one, and need not be compiled again.
    random.Random(seed).shuffle(tiles)
    chosen = set(tiles[:count])
    return [config for config in configs if _tile(config) in chosen]


def _tile(config: Config) -> Tile:
    return tuple(int(config[name]) for name in TILE)


def place_of(
    winner: RecordedWinner, screened: Screened, drawn: Collection[Tile]
) -> tuple[int | None, int]:
    """The winner's place among the tiles that are left for its problem, and how many there are."""
    limits = limits_of(winner.target)
    problem = problem_of(winner)
    points = ATTENTION.kernel.space.on(winner.target.family, winner.target.arch, problem.fields())
    seconds: dict[Tile, float] = {}
    left: set[Tile] = set()
    for config in screened.rejections:
        reason = screened.reason(config)
        if reason not in (None, "duplicate") or not _fits(config, points):
            continue
        tile = _tile(config)
        guess = _seconds(problem, config, screened.builds[config].facts, limits)
        seconds[tile] = min(guess, seconds.get(tile, guess))
        # Of the tiles that were not drawn, this winner's counts, but not the others'.
        if reason is None and (tile in drawn or tile == winner.tile):
            left.add(tile)
    if winner.tile not in seconds:
        return None, len(left)
    mine = seconds[winner.tile]
    return 1 + sum(seconds[tile] < mine for tile in left - {winner.tile}), len(left)


def problem_of(winner: RecordedWinner) -> AttentionProblem:
    return AttentionProblem(
        batch=winner.batch,
        heads=winner.heads,
        group=winner.group,
        queries=winner.queries,
        keys=winner.keys,
        head_size=winner.head_size,
        value_size=winner.head_size,
        dtype=winner.dtype,
        causal=winner.causal,
    )


def _fits(config: Config, points: Any) -> bool:
    """Whether a tile is in the space of a problem; orders of tiles matter where there are some."""
    return Config.of(**{**config.as_kwargs(), "LAST_TILE_FIRST": False}) in points


def _seconds(
    problem: AttentionProblem, config: Config, facts: Mapping[str, Any], limits: Limits
) -> float:
    diagonal = 0 if problem.causal else None
    work = attention_work(problem.fields(), config.as_kwargs(), limits, diagonal)
    return estimate(work, binary_facts(facts), limits).seconds


def ranked_winners(
    recorded: Iterable[RecordedWinner], store: Store, options: argparse.Namespace
) -> dict[str, list[float | None]]:
    """For each GPU and kind of code, where its winners are: 0.1 is in the best tenth."""
    by_kind = defaultdict(list)
    for winner in recorded:
        by_kind[winner.kind].append(winner)
    found: dict[str, list[float | None]] = {}
    for kind, mine in sorted(by_kind.items(), key=lambda item: str(item[0])):
        task = task_for(kind, options.blocks)
        configs = configs_of(task, options.budgets)
        some, tiles = some_of(configs, options.space), {winner.tile for winner in mine}
        only = [*some, *(config for config in configs if _tile(config) in tiles)]
        screened = screen(task, store, jobs=options.jobs, only=list(dict.fromkeys(only)))
        drawn = set(map(_tile, some))
        places = [place_of(winner, screened, drawn) for winner in mine]
        label = f"{kind[0]} {kind[1]} head {kind[2]}{' causal' if kind[3] else ''}"
        found[label] = [None if place is None else place / count for place, count in places]
        print_row(label, found[label], sum(count for _, count in places) / len(places))
    return found


def print_row(label: str, places: Sequence[float | None], candidates: float | None = None) -> None:
    best, good = (part_within(places, limit) for limit in (BEST, GOOD))
    print(
        f"{label:36} {len(places):8} {'' if candidates is None else f'{candidates:.0f}':>10} "
        f"{best:10.1%} {good:10.1%} {sum(place is None for place in places):8}",
        flush=True,
    )


def part_within(places: Sequence[float | None], limit: float) -> float:
    return sum(place is not None and place <= limit for place in places) / len(places)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dejavu", type=Path, help="a folder with triton-dejavu's caches")
    parser.add_argument("--aotriton", type=Path, help="AOTriton's tuning database")
    parser.add_argument("--targets", nargs="+", help="only these")
    parser.add_argument(
        "--blocks", type=at_least_one, nargs="+", help="only these block sizes, for a try"
    )
    parser.add_argument("--space", type=whole_or_count, metavar="full|N", help="how many tiles")
    parser.add_argument("--budgets", choices=["largest", "all"], default="all")
    parser.add_argument("-j", "--jobs", type=at_least_one, default=os.cpu_count() or 1)
    parser.add_argument("--store", default="screening.sqlite", help="where builds are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(arguments)
    recorded = winners(options.dejavu, options.aotriton)
    if options.targets:
        recorded = [winner for winner in recorded if str(winner.target) in options.targets]
    if not recorded:
        parser.error("there is no winner to look for: give --dejavu, --aotriton or both")
    print(
        f"{'winners of':36} {'problems':>8} {'candidates':>10} {'best 20 %':>10} "
        f"{'best third':>10} {'missing':>8}"
    )
    with Store(options.store) as store:
        found = ranked_winners(recorded, store, options)
    every = [place for places in found.values() for place in places]
    print_row("all", every)
    if options.json:
        print(json.dumps({"places": found}, indent=2))


if __name__ == "__main__":
    main()
