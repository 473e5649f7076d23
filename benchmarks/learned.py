"""Which rule answers best for problems that were not tuned: nearest, portfolio or tree?

No time is measured here. Recorded problems are held out in five parts; each rule learns from the
other problems and answers for the part. The rules:

- `nearest`: the winner of the nearest problem with the same dtype and flags (what calls use);
- `portfolio`: of a greedy set of at most 32 configs, the one that is best on average;
- `tree`: a regression tree (scikit-learn) that chooses from that set. `pip install scikit-learn`
  adds its lines to the table.

`first choice` is what a rule proposes. `with evidence` is what a call gets: the proposal only where
measurements on both sides of the problem say that it beats the default, else the default.

The table has the share of answers that are not the default and, of these, that are the recorded
winner; and how much slower answers are than the best known config, and than the default.

Sources: AOTriton's databases and triton-dejavu's caches (`--data`), which record winners only, so
that agreement with the winner is all they can show; stores (`--store`); and generated problems with
three regimes, noise, and configs that were not tried everywhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tritune.policy.learning import measured
from tritune.policy.learning.evidence import Evidence
from tritune.policy.learning.measured import Measured
from tritune.policy.nearest import (
    Fields,
    distance,
    is_size,
    log_size,
    nearest_configs,
    same_kind,
)
from tritune.space import Config
from tritune.store import Store
from tritune.store.formats import recognise

#: A rule's answers for a problem, the best first.
Ranked = Callable[[Fields], Sequence[Config]]

FOLDS = 5
#: The portfolio: configs of it at most, the slowdown that is good enough, and the largest counted.
MOST_CONFIGS, BOUND, HOPELESS = 32, math.log(1.03), math.log(8.0)
#: Where only winners are recorded, every other config is taken to cost this.
OTHER = math.log(1.1)
#: The default of generated problems.
DEFAULT = Config.of(TILE=0)


def nearest(rows: Sequence[Measured]) -> Ranked:
    known = [(row.problem, row.fastest(1)[0]) for row in rows]
    return lambda fields: nearest_configs(known, fields)


def portfolio(rows: Sequence[Measured]) -> Ranked:
    configs, costs = chosen(rows)
    order = [configs[i] for i in costs.mean(axis=0).argsort(kind="stable")]
    return lambda fields: order


def tree(rows: Sequence[Measured]) -> Ranked:
    from sklearn.tree import DecisionTreeRegressor

    configs, costs = chosen(rows)
    columns = questions([row.problem for row in rows])
    model = DecisionTreeRegressor(random_state=0)
    model.fit([[ask(row.problem) for ask in columns] for row in rows], costs)

    def ranked(fields: Fields) -> list[Config]:
        if not any(same_kind(row.problem, fields) for row in rows):
            return []
        predicted = model.predict([[ask(fields) for ask in columns]]).ravel()
        return [configs[i] for i in predicted.argsort(kind="stable")]

    return ranked


RULES = {"nearest": nearest, "portfolio": portfolio, "tree": tree}


def chosen(rows: Sequence[Measured]) -> tuple[list[Config], Any]:
    """Return a greedy set of configs and log(time / best time) of each for each problem.

    What was not measured is guessed from the nearest problems, a little worse than it looks.
    """
    configs = sorted({c for row in rows for c in row.fastest(3)}, key=lambda c: c.key)
    known = np.array([[config in row.times_ms for config in configs] for row in rows])
    log = [[slowdown(row, config) for config in configs] for row in rows]
    apart = [[distance(one.problem, other.problem) for other in rows] for one in rows]
    weights = 1.0 / (0.5 + np.array(apart)) ** 4
    guessed = weights @ np.array(log) / np.maximum(weights @ known, 1e-12) + 0.02
    costs = np.where(known, log, np.where(weights @ known > 0, guessed, HOPELESS))
    if winners_only(rows):
        costs = np.where(known, 0.0, OTHER)
    taken: list[int] = []
    best = np.full(len(rows), HOPELESS)
    while len(taken) < MOST_CONFIGS and best.max() > BOUND:
        pick = int(np.minimum(best[:, None], costs).sum(axis=0).argmin())
        if pick in taken:
            break
        taken.append(pick)
        best = np.minimum(best, costs[:, pick])
    return [configs[i] for i in taken], costs[:, taken]


def slowdown(row: Measured, config: Config) -> float:
    """Return log(time / best time) of a config; 0 where it was not measured."""
    best = min(row.times_ms.values())
    return min(math.log(row.times_ms.get(config, best) / best), HOPELESS)


def winners_only(rows: Sequence[Measured]) -> bool:
    return all(len(row.times_ms) == 1 for row in rows)


def questions(problems: Sequence[Fields]) -> list[Callable[[Fields], float]]:
    """Return what a tree asks: the logarithm of a size, or whether a field has a value."""
    found: list[Callable[[Fields], float]] = [lambda fields: 0.0]
    for name in sorted(problems[0]):
        values = sorted({problem[name] for problem in problems}, key=repr)
        if all(map(is_size, values)):
            found.append(lambda fields, name=name: log_size(fields[name]))
        else:
            found += [lambda fields, n=name, v=v: float(fields[n] == v) for v in values[1:]]
    return found


def generated(count: int) -> list[Measured]:
    """Return problems with three regimes: the truth is a tree, so this favours the tree."""
    rng, rows = random.Random(0), []
    configs = [Config.of(TILE=n) for n in range(1, 9)]
    names = ("rows", "columns", "dtype", "causal")
    sizes = [2**n for n in range(14)], [2**n for n in range(8, 14)]
    grid = list(itertools.product(*sizes, ("float32", "bfloat16"), (False, True)))
    for i, values in enumerate(rng.sample(grid, count)):
        fields: dict[str, Any] = dict(zip(names, values, strict=True))
        best = 2 if fields["causal"] else int(fields["rows"] > 256)
        times = {
            config: (1.0 if n == best else 1.3 + 0.1 * n) * math.exp(rng.gauss(0, 0.03))
            for n, config in enumerate(configs)
            if n == best or (i + n) % 3
        }
        rows.append(Measured(fields, {**times, DEFAULT: 1.5}, default=DEFAULT))
    return rows


def winners_of(path: Path, most: int) -> list[Measured]:
    """Return the winners that another tool recorded, as many as asked for."""
    trials = recognise.read(path)[1].trials
    drawn = random.Random(0).sample(trials, min(most, len(trials)))
    return [Measured(flat(json.loads(each.task.problem)), {each.config: 1.0}) for each in drawn]


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, list) else v for name, v in fields.items()}


def sources(
    data: Path | None, stores: Sequence[str], most: int
) -> Iterator[tuple[str, list[list[Measured]]]]:
    """Yield the name of each source, and its problems by kernel and device."""
    if data is not None:
        gpus = sorted((data / "aotriton").glob("*.tar.xz"))
        yield f"AOTriton, {len(gpus)} GPUs", [winners_of(path, most) for path in gpus]
        caches = [winners_of(path, most) for path in sorted((data / "dejavu").rglob("cache.json"))]
        caches = [rows for rows in caches if len(rows) >= FOLDS]
        yield f"triton-dejavu, {len(caches)} GPUs", caches
    for location in stores:
        with Store(location, read_only=True) as store:
            keys = sorted({task_key(task) for task in store.tasks()})
            tables = [measured.read(store, *key) for key in keys]
        yield Path(location).name, [rows for rows in tables if len(rows) >= FOLDS]
    for count in (60, 180):
        yield "generated", [generated(count)]


def task_key(task: Any) -> tuple[str, str, str]:
    return task.kernel, task.identity, task.device


def held_out(
    rows: Sequence[Measured], rule: Callable[[Sequence[Measured]], Ranked]
) -> Iterator[tuple[Measured, Config | None, Config | None]]:
    """Yield each problem with the first choice and with what a call gets, learned without it."""
    order = random.Random(0).sample(range(len(rows)), len(rows))
    for fold in range(FOLDS):
        out = set(order[fold::FOLDS])
        known = [row for i, row in enumerate(rows) if i not in out]
        ranked = rule(known)
        evidence = Evidence.of(known)
        for row in (rows[i] for i in sorted(out)):
            proposed = list(ranked(row.problem))
            yield row, next(iter(proposed), None), called(row, proposed, evidence)


def called(row: Measured, proposed: Sequence[Config], evidence: Evidence) -> Config | None:
    """Return the first proposal that measurements speak for, else the default."""
    for config in proposed:
        if config == row.default:
            break
        if row.default is not None and evidence.supports(row.problem, config, row.default):
            return config
    return row.default


def figures(answers: Sequence[tuple[Measured, Config | None]], timed: bool) -> dict[str, float]:
    """Return the share of answers that are not the default, and their regret where it is known."""
    own = [(row, c) for row, c in answers if c is not None and c != row.default]
    found = {"answered": len(own) / len(answers)}
    if own:
        found["is the winner"] = statistics.fmean(c == row.fastest(1)[0] for row, c in own)
    if not timed:
        return found
    best = sorted(cost for row, c in answers if c and (cost := row.cost(c)) is not None)
    default = sorted(cost for row, c in own if (cost := row.slower_than_default(c)) is not None)
    for name, costs in (("best", best), ("default", default)):
        if costs:
            found[f"mean, {name}"] = statistics.fmean(costs)
            found[f"p95, {name}"] = costs[math.ceil(0.95 * len(costs)) - 1]
    return found


COLUMNS = [
    "answered",
    "is the winner",
    *(f"{figure}, {whom}" for whom in ("best", "default") for figure in ("mean", "p95")),
]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    data = os.environ.get("TRITUNE_TEST_DATA")
    parser.add_argument("--data", type=Path, default=data, help="a folder with aotriton/, dejavu/")
    parser.add_argument("--store", action="append", default=[], help="a store with recorded times")
    parser.add_argument("--problems", type=int, default=400, help="of each of AOTriton's files")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    arguments = parser.parse_args(given)
    rules = dict(RULES)
    if importlib.util.find_spec("sklearn") is None:
        del rules["tree"]
    if not arguments.json:
        print("| source | problems | rule | answer |", " | ".join(COLUMNS), "|")
        print("|---" * (4 + len(COLUMNS)) + "|")
    for source, tables in sources(arguments.data, arguments.store, arguments.problems):
        count = sum(map(len, tables))
        if not count:
            continue
        timed = not all(map(winners_only, tables))
        for name, rule in rules.items():
            answers = [answer for rows in tables for answer in held_out(rows, rule)]
            kinds = {"first choice": [(row, first) for row, first, _ in answers]}
            if timed:
                kinds["with evidence"] = [(row, call) for row, _, call in answers]
            for kind, pairs in kinds.items():
                found = figures(pairs, timed)
                if arguments.json:
                    about = {"source": source, "problems": count, "rule": name, "answer": kind}
                    print(json.dumps({**about, **found}))
                    continue
                cells = [f"{found[each]:.1%}" if each in found else "" for each in COLUMNS]
                print(f"| {source} | {count} | {name} | {kind} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
