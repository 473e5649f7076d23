"""Exact, learned, default, in this order; and what is never used."""

from __future__ import annotations

import dataclasses
import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import tritune
from tests.policy.stored import CPU, config, default_of, problem, put
from tritune.kernels.rms_norm import KERNEL, RmsNormProblem
from tritune.policy import answer_for
from tritune.policy.policy import Policy
from tritune.policy.sources import PolicyWarning


def default_kwargs(one: RmsNormProblem) -> dict[str, object]:
    return dict(default_of(one).as_kwargs())


@pytest.mark.filterwarnings("error")
def test_without_a_store_the_default_answers_and_nobody_complains(policy: Policy) -> None:
    assert policy.config_for(KERNEL, problem(), CPU) == default_kwargs(problem())
    assert policy.answer_for(KERNEL, problem(), CPU).source == "default"


def test_the_winner_of_the_very_problem_comes_first(store_path: Path, policy: Policy) -> None:
    put(store_path, {problem(): {config(2, 512): 1.0, config(4, 128): 2.0}})
    answer = policy.answer_for(KERNEL, problem(), CPU)
    assert (answer.config, answer.source) == (config(2, 512), "exact")
    assert policy.config_for(KERNEL, problem(), CPU) == config(2, 512).as_kwargs()


def test_a_problem_that_was_not_tuned_runs_with_the_default_though_near_ones_were(
    store_path: Path, policy: Policy
) -> None:
    winner = config(2, 512)
    put(store_path, {problem(n): {winner: 1.0, default_of(problem(n)): 2.0} for n in (64, 256)})
    answer = policy.answer_for(KERNEL, problem(128), CPU)
    assert (answer.config, answer.source) == (default_of(problem(128)), "default")


def test_another_dtype_is_another_matter(store_path: Path, policy: Policy) -> None:
    put(store_path, {problem(): {config(2, 512): 1.0}})
    assert policy.answer_for(KERNEL, problem(dtype="bfloat16"), CPU).source == "default"


@pytest.mark.parametrize("wrong", [config(3, 512), config(128, 512), config(1, 4096)])
def test_a_stored_config_outside_the_space_is_ignored(
    store_path: Path, policy: Policy, wrong: object
) -> None:
    put(store_path, {problem(): {wrong: 1.0}})
    assert policy.answer_for(KERNEL, problem(), CPU).source == "default"


def test_results_of_other_code_are_ignored(store_path: Path, policy: Policy) -> None:
    put(store_path, {problem(): {config(2, 512): 1.0}}, identity="of yesterday")
    assert policy.answer_for(KERNEL, problem(), CPU).source == "default"


def test_a_file_that_is_no_store_is_a_warned_miss(store_path: Path, policy: Policy) -> None:
    store_path.write_bytes(b"this was never a database" * 1000)
    with pytest.warns(PolicyWarning, match="the store is left out"):
        assert policy.config_for(KERNEL, problem(), CPU) == default_kwargs(problem())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.config_for(KERNEL, problem(8), CPU)


def test_damaged_pages_and_rows_are_a_warned_miss(store_path: Path, policy: Policy) -> None:
    put(store_path, {problem(): {config(2, 512): 1.0}})
    with sqlite3.connect(store_path) as connection:
        connection.execute("UPDATE trials SET config = 'nonsense'")
    connection.close()
    with pytest.warns(PolicyWarning, match="the store is left out"):
        assert policy.config_for(KERNEL, problem(), CPU) == default_kwargs(problem())


def test_a_damaged_learned_policy_is_a_warned_miss(store_path: Path, policy: Policy) -> None:
    from tritune.policy.learning import saved
    from tritune.store import Store
    from tritune.targets.device import detect

    put(store_path, {problem(): {config(2, 512): 1.0}})
    with Store(store_path) as store:
        path = saved.path_of(store, KERNEL.name, detect(CPU).fingerprint)
    path.parent.mkdir()
    path.write_text('{"format": "tritune-policy", "version": 2, "kernel": 3}')
    with pytest.warns(PolicyWarning, match="is no learned policy"):
        answer = policy.answer_for(KERNEL, problem(128), CPU)
    assert answer.source == "default"
    assert policy.answer_for(KERNEL, problem(), CPU).config == config(2, 512)


def test_new_winners_are_swapped_in_by_a_refresh(store_path: Path, policy: Policy) -> None:
    put(store_path, {problem(8): {config(1, 128): 1.0}})
    before = {n: policy.config_for(KERNEL, problem(n), CPU) for n in (8, 64)}
    put(store_path, {problem(64): {config(2, 512): 1.0}})
    assert policy.config_for(KERNEL, problem(64), CPU) == before[64]
    assert policy.refresh() == 1
    assert policy.config_for(KERNEL, problem(64), CPU) == config(2, 512).as_kwargs()
    assert policy.config_for(KERNEL, problem(8), CPU) is before[8]


def test_a_refresh_replaces_the_whole_table_in_one_assignment(
    store_path: Path, policy: Policy
) -> None:
    policy.config_for(KERNEL, problem(64), CPU)
    old = policy._answers
    put(store_path, {problem(64): {config(2, 512): 1.0}})
    content = dict(old)
    policy.refresh()
    assert policy._answers is not old
    assert old == content


def test_a_forced_config_holds_for_its_kernel_in_its_block_and_thread(policy: Policy) -> None:
    other = dataclasses.replace(KERNEL)
    default = policy.config_for(KERNEL, problem(), CPU)
    elsewhere: list[object] = []
    with policy.forced(KERNEL, config(2, 512)):
        with policy.forced(KERNEL, config(4, 128)):
            assert policy.config_for(KERNEL, problem(), CPU) == config(4, 128).as_kwargs()
        assert policy.config_for(KERNEL, problem(), CPU) == config(2, 512).as_kwargs()
        assert policy.config_for(other, problem(), CPU) == default
        thread = threading.Thread(
            target=lambda: elsewhere.append(policy.config_for(KERNEL, problem(), CPU))
        )
        thread.start()
        thread.join()
    assert elsewhere == [default]
    assert policy.config_for(KERNEL, problem(), CPU) is default


def test_a_refresh_reads_the_store_that_is_there_now(
    policy: Policy, store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store_path, {problem(64): {config(1, 256): 1.0}})
    assert policy.answer_for(KERNEL, problem(64), CPU).config == config(1, 256)
    put(tmp_path / "new.sqlite", {problem(64): {config(2, 512): 1.0}})
    for left in store_path.parent.glob(f"{store_path.name}-*"):
        left.unlink()
    (tmp_path / "new.sqlite").replace(store_path)
    assert policy.refresh() == 1
    assert policy.answer_for(KERNEL, problem(64), CPU).config == config(2, 512)

    put(tmp_path / "other.sqlite", {problem(64): {config(4, 256): 1.0}})
    monkeypatch.setenv("TRITUNE_STORE", str(tmp_path / "other.sqlite"))
    assert policy.refresh() == 1
    assert policy.answer_for(KERNEL, problem(64), CPU).config == config(4, 256)


def test_an_op_launches_what_the_store_says(store_path: Path) -> None:
    from triton import knobs

    put(store_path, {problem(64, 1024): {config(2, 512): 1.0}})
    x, weight = torch.randn(64, 1024), torch.ones(1024)
    launched: list[dict[str, object]] = []
    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = lambda **info: launched.append(info["compile"]["constants"])
        tritune.rms_norm(x, weight)
    assert answer_for(KERNEL, problem(64, 1024), CPU).source == "exact"
    assert any({2, 512} <= set(constants.values()) for constants in launched)


PROGRAM = """
import sys, time
import torch
from tests.policy.stored import CPU, problem
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import config_for

for n in (64, 128):
    config_for(KERNEL, problem(n), CPU)
events = []
def forbidden(*args):
    raise AssertionError("the clock was read")
for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    setattr(time, name, forbidden)
fresh = [problem(n) for n in (64, 128)] * 50
sys.addaudithook(lambda name, arguments: events.append(name))
for one in fresh:
    config_for(KERNEL, one, CPU)
print(sorted(set(events)))
"""


def test_after_the_first_call_no_file_database_or_clock_is_touched(store_path: Path) -> None:
    put(store_path, {problem(64): {config(2, 512): 1.0}})
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=root, check=True
    )
    assert run.stdout.strip() == "[]"


def test_answers_stand_until_something_is_forced_or_looked_at_again(policy: Policy) -> None:
    question = (KERNEL, problem(), CPU)
    answer = policy.config_for(*question)
    answers = policy.answers_with(question, answer)
    assert answers is not None
    assert policy.stand(answers)
    assert policy.answers_with(question, dict(answer)) is None
    with policy.forced(KERNEL, config(1, 128)):
        assert not policy.stand(answers)
        assert policy.answers_with(question, answer) is None
    assert policy.stand(answers)
    policy.forget()
    assert not policy.stand(answers)
