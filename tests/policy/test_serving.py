"""Serve mode: nothing is compiled that was not warmed, nothing is tuned, no clock is read."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import tritune
from tests.policy.stored import CPU, config, default_of, problem, put
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import answer_for, config_for, forced, mode, refresh, warm
from tritune.policy.modes import Mode
from tritune.policy.policy import Policy
from tritune.policy.serving import NotWarmedError
from tritune.policy.sources import PolicyWarning

PROGRAM = """
import time
import torch
import triton
from triton import knobs
import tritune
from tritune.policy import mode, warm
from tritune.policy.serving import NotWarmedError

compiled, clock = [], []
knobs.compilation.listener = lambda *args, **info: compiled.append(info)
def counted(name):
    real = getattr(time, name)
    def read():
        clock.append(name)
        return real()
    return read
def run(rows, dtype=torch.float32):
    tritune.rms_norm(torch.randn(rows, 1024, dtype=dtype), torch.ones(1024, dtype=dtype))

mode("serve")
with warm():
    run(64)
    run(4096)
warmed = len(compiled)
for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    setattr(time, name, counted(name))
for rows in (64, 33, 4096, 100, 300, 2000):
    run(rows)
refused = 0
try:
    run(64, torch.bfloat16)
except NotWarmedError:
    refused = 1
print(warmed, len(compiled) - warmed, len(clock), refused)
"""


def test_serving_compiles_nothing_and_reads_no_clock(fresh_triton_cache: str) -> None:
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    warmed, compiled, clock, refused = map(int, run.stdout.split())
    assert warmed >= 1
    assert (compiled, clock, refused) == (0, 0, 1)


def test_an_unwarmed_problem_uses_what_the_nearest_warmed_one_does(
    store_path: Path, policy: Policy
) -> None:
    put(
        store_path,
        {
            problem(64): {config(2, 512): 1.0},
            problem(4096): {config(4, 256): 1.0},
            problem(128): {config(1, 128): 1.0},
        },
    )
    policy.enter(Mode("serve"))
    try:
        with warm():
            for rows in (64, 4096):
                policy.config_for(KERNEL, problem(rows), CPU)
        with pytest.warns(PolicyWarning, match="rms_norm was not warmed for all problems"):
            answer = policy.answer_for(KERNEL, problem(128), CPU)
        # It has a winner of its own, but that was not compiled.
        assert (answer.config, answer.source) == (config(2, 512), "warmed")
    finally:
        policy.enter(Mode())
    assert policy.answer_for(KERNEL, problem(128), CPU).config == config(1, 128)


def test_an_unwarmed_problem_runs_with_its_default_if_that_was_warmed(
    store_path: Path, policy: Policy
) -> None:
    own = default_of(problem(128))
    put(store_path, {problem(64): {config(2, 512): 1.0}, problem(4096): {own: 1.0}})
    policy.enter(Mode("serve"))
    try:
        with warm():
            for rows in (64, 4096):
                policy.config_for(KERNEL, problem(rows), CPU)
        answer = policy.answer_for(KERNEL, problem(128), CPU)
        assert (answer.config, answer.source) == (own, "warmed")
    finally:
        policy.enter(Mode())


def test_what_was_called_before_serving_is_warm(store_path: Path) -> None:
    put(store_path, {problem(64): {config(2, 512): 1.0}})
    before = config_for(KERNEL, problem(64), CPU)
    with mode("serve"):
        assert config_for(KERNEL, problem(64), CPU) is before


def test_a_problem_unlike_all_warmed_ones_is_refused_with_a_remedy() -> None:
    with mode("serve"), pytest.raises(NotWarmedError, match=r"with tritune.warm\(\)") as refused:
        config_for(KERNEL, problem(64), CPU)
    assert refused.value.kernel == "rms_norm"


def test_code_that_was_not_warmed_is_refused_even_where_the_config_is_known() -> None:
    x, weight = torch.randn(64, 1024), torch.ones(1024)
    tritune.rms_norm(x, weight)
    with mode("serve"), forced(KERNEL, config(2, 64)):
        with pytest.raises(NotWarmedError, match="rms_norm_kernel"):
            tritune.rms_norm(x, weight)
        with warm():
            tritune.rms_norm(x, weight)
        tritune.rms_norm(x, weight)


def test_a_window_is_open_for_its_own_thread_only() -> None:
    refused: list[bool] = []

    def elsewhere() -> None:
        try:
            config_for(KERNEL, problem(64), CPU)
        except NotWarmedError:
            refused.append(True)

    with mode("serve"), warm():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        config_for(KERNEL, problem(64), CPU)
    assert refused == [True]


@triton.jit
def _double(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def test_other_programs_in_the_process_compile_as_they_like() -> None:
    x = torch.ones(8)
    with mode("serve"):
        _double[(1,)](x, 8, BLOCK=8)
    assert x.tolist() == [2.0] * 8


def test_a_hook_that_was_there_before_is_called_and_put_back() -> None:
    from triton import knobs

    seen: list[str] = []

    def earlier(**info: object) -> None:
        seen.append(str(info["repr"]))

    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = earlier
        with mode("serve"):
            _double[(1,)](torch.ones(16), 16, BLOCK=16)
        assert knobs.runtime.jit_cache_hook is earlier
    assert any("_double" in each for each in seen)


def test_answers_do_not_move_while_serving(store_path: Path) -> None:
    before = config_for(KERNEL, problem(64), CPU)
    with mode("serve"):
        put(store_path, {problem(64): {config(2, 512): 1.0}})
        assert refresh() == 0
        assert config_for(KERNEL, problem(64), CPU) is before
    assert answer_for(KERNEL, problem(64), CPU).source == "exact"
