"""After a little tuning, no problem that was not tuned runs with anything but its default.

The fast form of `benchmarks/regret.py --grid`, which tunes and measures: here stores say that three
problems of each op, drawn at random, have a winner that is twice as fast as their default.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.regret import drawn_problems

from tests.policy.stored import CPU, default_of, put
from tritune.policy.learning.from_store import learn_and_save
from tritune.policy.policy import Policy
from tritune.store import Store
from tritune.targets.device import detect
from tritune.workloads.catalog import WORKLOADS

PROBLEMS, TUNED = 300, 3


@pytest.mark.parametrize("seed", range(3))
def test_three_tuned_problems_of_an_op_change_the_answer_of_no_other(
    seed: int, store_path: Path, policy: Policy
) -> None:
    rng, device = random.Random(seed), detect(CPU)
    drawn = drawn_problems(PROBLEMS, seed)
    tuned = set()
    for name in {name for name, _ in drawn}:
        workload, own = WORKLOADS[name], [p for n, p in drawn if n == name]
        for one in rng.sample(own, TUNED):
            points = workload.kernel.space.on(
                device.target.family, device.target.arch, one.fields()
            )
            (winner,) = points.sample(1, rng)
            times = {default_of(one, workload.kernel): 2.0, winner: 1.0}
            put(store_path, {one: times}, workload.kernel)
            tuned.add((name, one))
    with Store(store_path) as store:
        for workload in WORKLOADS.values():
            learn_and_save(store, workload.kernel, device)
    for name, one in drawn:
        kernel = WORKLOADS[name].kernel
        answer = policy.answer_for(kernel, one, CPU)
        if (name, one) not in tuned:
            assert answer.config == default_of(one, kernel), (name, one, answer)
