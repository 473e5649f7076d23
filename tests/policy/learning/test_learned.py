"""What is learned from measurements, and whether it says honestly how good it is."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.policy.stored import CPU, config, default_of, problem, put, task_of
from tritune.kernels.rms_norm import KERNEL
from tritune.policy.learning import from_store, learned, saved
from tritune.policy.learning.held_out import LARGEST_COST, AgainstDefault, cost_of_answer, held_out
from tritune.policy.learning.measured import Measured, read
from tritune.policy.nearest import Fields, nearest_configs
from tritune.policy.policy import Policy
from tritune.space import Config
from tritune.store import Store
from tritune.store.records import Samples
from tritune.targets.device import detect

SMALL, LARGE, WIDE, NEVER, DEFAULT = (Config.of(TILE=n) for n in (1, 2, 3, 4, 5))


def anything(config: Config, fields: Fields) -> bool:
    return True


def rule(fields: Fields) -> Config:
    """The truth that there is to learn: three regimes."""
    if fields["wide"]:
        return WIDE
    return SMALL if int(fields["rows"]) <= 256 else LARGE


def with_default(rows: Sequence[Measured]) -> list[Measured]:
    """The same problems, with a default config that takes twice as long as the best."""
    return [Measured(row.problem, {**row.times_ms, DEFAULT: 2.0}, default=DEFAULT) for row in rows]


def rows_of(count: int, noise: float = 0.0, seed: int = 0) -> list[Measured]:
    rng = random.Random(seed)
    found = []
    for i in range(count):
        fields: Fields = {
            "rows": 2 ** (i % 14),
            "columns": 64 * (1 + i // 14),
            "dtype": ("float32", "bfloat16")[i % 2],
            "wide": i % 3 == 0,
        }
        times = {
            c: (1.0 if c == rule(fields) else 1.5 + 0.1 * j) * math.exp(rng.gauss(0, noise))
            for j, c in enumerate((SMALL, LARGE, WIDE, NEVER))
        }
        found.append(Measured(fields, times))
    return found


def fitted(rows: Sequence[Measured]) -> learned.LearnedPolicy:
    policy = learned.fit(rows, anything, "kernel", "identity", "device")
    assert policy is not None
    return policy


def test_regret_is_measured_on_problems_that_were_held_out() -> None:
    # Nothing to learn: each problem has a winner by chance. Who may look at the problem itself
    # makes no mistake, so a small figure here would be a figure of the training.
    rng = random.Random(1)
    configs = [Config.of(TILE=n) for n in range(8)]
    rows = [
        Measured(row.problem, {c: 1.0 if c is lucky else 2.0 for c in configs})
        for row in rows_of(60)
        for lucky in [rng.choice(configs)]
    ]
    policy = fitted(rows)
    first = [policy.evidence.nearest(row.problem)[0] for row in rows]
    assert {cost_of_answer(c, row) for c, row in zip(first, rows, strict=True)} == {0.0}
    regret = policy.regret
    assert regret is not None
    assert regret.mean > 0.5
    assert (regret.p95, regret.measured, regret.problems) == (1.0, 60, 60)


def test_regret_counts_only_answers_that_somebody_measured() -> None:
    rows = [
        Measured(row.problem, {c: ms for c, ms in row.times_ms.items() if c != NEVER})
        if i % 2
        else Measured(row.problem, {rule(row.problem): 1.0})
        for i, row in enumerate(rows_of(84))
    ]
    regret = fitted(rows).regret
    assert regret is not None
    assert 42 <= regret.measured <= regret.problems == 84


def test_an_answer_that_fails_and_one_by_default_are_part_of_the_regret() -> None:
    near: list[Fields] = [{"rows": 2**n, "dtype": "float32"} for n in range(4)]
    rows = [Measured(fields, {LARGE: 1.0}) for fields in near]
    failed = Measured({"rows": 64, "dtype": "float32"}, {SMALL: 1.0, LARGE: math.inf})
    regret, _ = held_out([*rows, failed], anything)
    assert (regret.p95, regret.measured) == (LARGEST_COST, 5)
    other: Fields = {"rows": 64, "dtype": "float16"}
    times = {SMALL: 1.0, WIDE: 1.25}
    regret, _ = held_out([*rows, Measured(other, times, default=WIDE)], anything)
    assert (regret.p95, regret.measured) == (0.25, 5)
    regret, _ = held_out([*rows, Measured(other, times)], anything)
    assert (regret.p95, regret.measured) == (0.0, 4)


@pytest.mark.parametrize("count", range(4, 9))
def test_any_number_of_problems_can_be_learned_from(count: int) -> None:
    policy = fitted(rows_of(count))
    assert (policy.regret is None) == (count < learned.FEWEST_PROBLEMS)


def test_a_dtype_or_flag_never_seen_is_not_guessed_at() -> None:
    evidence = fitted(rows_of(84)).evidence
    fields: Fields = {"rows": 64, "columns": 64, "dtype": "float16", "wide": False}
    assert evidence.nearest(fields) == []
    assert evidence.nearest({**fields, "dtype": "float32"}) != []


def test_the_nearest_problems_config_comes_first_and_each_config_once() -> None:
    known: list[tuple[Fields, Config]] = [
        ({"rows": rows, "dtype": "float32"}, found)
        for rows, found in ((1, SMALL), (16, LARGE), (32, LARGE), (1024, WIDE))
    ]
    assert nearest_configs(known, {"rows": 20, "dtype": "float32"}) == [LARGE, SMALL, WIDE]
    # As near as each other: the first of the known problems.
    assert nearest_configs(known[:2], {"rows": 4, "dtype": "float32"}) == [SMALL, LARGE]


def test_a_config_that_is_not_valid_is_passed_over() -> None:
    rows = with_default(rows_of(84))
    fields = rows[20].problem
    policy = fitted(rows)
    assert policy.answer(fields, DEFAULT, anything) == rule(fields)
    assert policy.answer(fields, DEFAULT, lambda config, _: config != rule(fields)) == LARGE
    assert policy.answer(fields, DEFAULT, lambda *_: False) is None


def test_from_nothing_nothing_is_learned() -> None:
    assert learned.fit([], anything, "kernel", "identity", "device") is None
    assert fitted(rows_of(3)).regret is None


@pytest.mark.parametrize("count", [3, 84])
def test_a_policy_survives_being_saved(count: int, store_path: Path) -> None:
    policy = fitted(rows_of(count, noise=0.05))
    with Store(store_path) as store:
        saved.save(store, policy)
        again = saved.load(store, "kernel", "identity", "device")
        assert saved.load(store, "kernel", "other code", "device") is None
        assert saved.load(store, "kernel", "identity", "other device") is None
    assert again == policy


def test_a_policy_of_the_version_with_trees_is_read(store_path: Path) -> None:
    policy = fitted(rows_of(84))
    with Store(store_path) as store:
        path = saved.save(store, policy)
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "version": 2, "bound": 1.0, "tree": [0]}))
        assert saved.load(store, "kernel", "identity", "device") == policy


# Where the default is that of the problems around.
HOLES = (problem(16, 2048), problem(128, 2048))


def _tune_many(path: Path) -> None:
    """Two regimes with a winner each, twice as fast as the default; two problems are left out."""
    put(
        path,
        {
            one: {
                config(1, 128): 1.0 if i < 6 else 4.0,
                config(4, 256): 4.0 if i < 6 else 1.0,
                default_of(one): 2.0,
            }
            for i in range(2, 10)
            for columns in (512, 1024, 2048)
            if (one := problem(2**i, columns)) not in HOLES
        },
    )


def test_what_was_learned_from_a_store_answers_and_is_described(
    store_path: Path, policy: Policy
) -> None:
    _tune_many(store_path)
    device = detect(CPU)
    with Store(store_path) as store:
        assert from_store.describe(store, KERNEL, device) == [
            "22 problems measured, nothing learned yet"
        ]
        from_store.learn_and_save(store, KERNEL, device)
        lines = from_store.describe(store, KERNEL, device)
    assert lines == [
        "the nearest problem's, of 2 configs, learned from 22 problems",
        "regret on held-out problems: mean 0.0%, 95th percentile 0.0% "
        "(22 of 22 answers were measured)",
        "problems that were not tuned: one of these configs where measurements on both sides speak "
        "for it, else the default",
    ]
    for hole, expected in zip(HOLES, (config(1, 128), config(4, 256)), strict=True):
        answer = policy.answer_for(KERNEL, hole, CPU)
        assert (answer.config, answer.source) == (expected, "learned")
    for beyond in (problem(1024, 1024), problem(16, 768), problem(16, 1024, "bfloat16")):
        assert policy.answer_for(KERNEL, beyond, CPU).source == "default"


def test_a_policy_whose_held_out_answers_were_slower_than_the_default_is_not_followed() -> None:
    trusted = fitted(with_default(rows_of(84)))
    assert trusted.trusted
    assert trusted.held_out is not None
    for figures in (None, AgainstDefault(40, 0.2), AgainstDefault(2, 0.0)):
        policy = dataclasses.replace(trusted, held_out=figures)
        fields = rows_of(84)[20].problem
        assert trusted.answer(fields, DEFAULT, anything) == rule(fields)
        assert policy.answer(fields, DEFAULT, anything) is None
        assert "the default config" in policy.describe()[-1]


def test_a_policy_learned_from_older_data_says_so(store_path: Path) -> None:
    _tune_many(store_path)
    with Store(store_path) as store:
        from_store.learn_and_save(store, KERNEL, detect(CPU))
        put(store_path, {problem(64, 96): {config(1, 64): 1.0}})
        assert "more was measured since" in from_store.describe(store, KERNEL, detect(CPU))[-1]


def test_a_config_that_was_lucky_once_is_no_measure_for_others() -> None:
    """The best is chosen by one half of the samples, and its time is that of the other half."""
    lucky, steady = config(1), config(2)
    row = Measured(
        problem(1).fields(),
        {lucky: 1.5, steady: 1.6},
        halves_ms={lucky: (1.0, 2.0), steady: (1.6, 1.6)},
    )
    assert row.cost(steady) == pytest.approx(-0.2)
    assert row.cost(lucky) == 0.0
    assert row.cost(config(3)) is None


def test_the_halves_of_the_samples_come_from_the_store(tmp_path: Path) -> None:
    path, one = tmp_path / "store.sqlite", problem(1)
    put(path, {one: {config(1): 1.0}})
    with Store(path) as store:
        [trial] = store.trials(task_of(one))
        more = tuple(
            Samples(trial.run, "final", n + 1, (ms,)) for n, ms in enumerate((9.0, 7.0, 5.0, 3.0))
        )
        store.add_samples(trial.task, trial.config, *more)
        [row] = read(store, KERNEL.name, trial.task.identity, trial.task.device)
    # 1, 1, 1, 9, 7, 5, 3 in the order of the rounds: every other one, and the rest.
    assert row.halves_ms == {config(1): (2.0, 5.0)}
