"""`tritune.autotune` is `triton.autotune`, and remembers."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest
import torch
import triton
import triton.language as tl

from tests.tuning.spinning import beside_a_spinner
from tritune.errors import TrituneError
from tritune.policy import mode
from tritune.policy.sources import PolicyWarning
from tritune.space import Config, Parameter, Space
from tritune.store import Store
from tritune.store.records import Run, Samples, Trial
from tritune.targets.device import detect
from tritune.tuning.autotune.decorator import autotune
from tritune.tuning.autotune.triton_configs import config_of, points_of
from tritune.tuning.autotune.tune_call import process_store
from tritune.tuning.job import Outcome, Progress
from tritune.tuning.workers import background


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store for one test and the processes that it starts."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    process_store.cache_clear()
    with Store(path) as opened:
        yield opened
    process_store.cache_clear()


@pytest.fixture
def no_tuning(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("nothing was to be tuned")

    monkeypatch.setattr("tritune.tuning.tuner.tune_case", refuse)


@pytest.fixture
def quick_tuning(monkeypatch):
    """A tuner that measures nothing: the last config of the list wins."""

    def tune(job, store, run, settings, watch, workers):
        job.spec.open().run(job.default)  # in the arguments' copies
        *others, winner = job.points.configs()
        for config in (winner, *others):
            add_trial(store, job.task, config, run, 1.0 if config is winner else 2.0)
        return Outcome(job.task, store.winner(job.task), 0, 0, {}, None, None, 0.0)

    monkeypatch.setattr("tritune.tuning.tuner.tune_case", tune)


def add_trial(store, task, point, run, ms):
    samples = tuple(Samples(run, "final", number, (ms,) * 3) for number in range(6))
    store.add_trial(Trial(task, point, run, "2025-01-01T00:00:00", samples=samples))


def blocks(*sizes, **more):
    return [triton.Config({"BLOCK": size}, num_warps=4, **more) for size in sizes]


@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, 2 * tl.load(x_ptr + offsets, offsets < n), offsets < n)


@triton.jit
def accumulate(x_ptr, total_ptr, n, BLOCK: tl.constexpr, WRONG: tl.constexpr = 0):
    """Adds to its output in place; wrong and broken for some configs."""
    tl.static_assert(WRONG != 2)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, inside) + WRONG
    tl.store(total_ptr + offsets, tl.load(total_ptr + offsets, inside) + x, inside)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr, FIRST: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(FIRST, n, BLOCK):
        inner = k + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + rows[:, None] * n + inner[None, :])
        total += tl.dot(a, tl.load(b_ptr + inner[:, None] * n + columns[None, :]))
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total)


def call_scale(kernel, n=1000):
    x, y = torch.randn(n), torch.zeros(n)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    torch.testing.assert_close(y, 2 * x)
    return kernel.best_config


def test_a_kernel_that_works_in_place_is_tuned_without_touching_its_tensors(store):
    configs = [
        *blocks(64),
        triton.Config({"BLOCK": 128, "WRONG": 1}),
        triton.Config({"BLOCK": 256, "WRONG": 2}),
    ]
    kernel = autotune(configs, key=["n"], restore_value=["total_ptr"])(accumulate)
    x, total = torch.randn(1000), torch.randn(1000)
    expected = total + x
    kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, total, 1000)
    torch.testing.assert_close(total, expected)
    assert kernel.best_config is configs[0]
    (task,) = store.tasks()
    assert task.kernel == f"{__name__}.accumulate"
    assert {t.config["BLOCK"]: t.failure for t in store.trials(task)} == {
        64: None,
        128: "wrong_result",
        256: "compile_error",
    }
    assert min(kernel.configs_timings, key=kernel.configs_timings.get) is configs[0]


def test_a_reference_refuses_even_the_first_config(store):
    n = 64
    space = Space((Parameter("FIRST", (8, 0)), Parameter("BLOCK", (8, 16))), ("BLOCK * 4 <= n",))
    kernel = autotune(
        space=space,
        problem=lambda n, c_ptr: {"n": n, "rows": c_ptr.shape[0]},
        reference=lambda a_ptr, b_ptr: a_ptr @ b_ptr,
    )(matmul)
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    kernel[lambda meta: (n // meta["BLOCK"], n // meta["BLOCK"])](a, b, c, n)
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)
    assert kernel.best_config.kwargs["FIRST"] == 0
    (task,) = store.tasks()
    assert json.loads(task.problem)["rows"] == n
    failures = {t.config["FIRST"]: t.failure for t in store.trials(task)}
    assert failures == {8: "wrong_result", 0: None}


SCRIPT = """
    import sys
    import torch, triton, triton.language as tl
    from tritune.tuning.autotune.decorator import autotune

    print("the script runs")

    def kernel_adding(bias, configs):
        @triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
        @autotune(configs=configs, key=["n"])
        @triton.heuristics({"SQUARE": lambda args: args["BLOCK"] * args["BLOCK"]})
        @triton.jit
        def add(x, n, EVEN: tl.constexpr, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
            tl.static_assert(EVEN and SQUARE == BLOCK * BLOCK)
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + offsets, tl.load(x + offsets, offsets < n) + bias, offsets < n)
        return add

    n = 3000
    configs = [triton.Config({"BLOCK": block}) for block in (64, 1024)]
    add = kernel_adding(tl.constexpr(1.5), configs)
    x = torch.zeros(n)
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
    assert torch.equal(x, torch.full((n,), 1.5))
    print(add.fn.best_config, hasattr(add.fn, "bench_time"))
"""


def test_a_script_tunes_once_and_a_second_process_not_at_all(tmp_path, store):
    """A closure in a script without a guard: no process could import it."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "warn" not in done.stderr.lower()
        outputs.append(done.stdout.splitlines())
    first, second = outputs
    assert first[0] == second[0] == "the script runs"
    assert len(first) == len(second) == 2  # workers do not run the script
    assert first[1].endswith("True") and second[1].endswith("False")
    assert first[1].split()[:2] == second[1].split()[:2]
    assert len(store.runs()) == 1


def remember(store, task, winner, others):
    """Put a winner into the store as if it had been tuned."""
    store.add_device(detect(torch.device("cpu")))
    store.begin_run(Run("run", "test", {}, "2025-01-01T00:00:00"))
    for config in (winner, *others):
        (point,) = points_of([config])
        add_trial(store, task, point, "run", 1.0 if config is winner else 2.0)


def remember_scale(store, kernel, n, winner):
    task = kernel.task(torch.zeros(1), torch.zeros(1), n, grid=(1,))
    remember(store, task, winner, [each for each in kernel.configs if each is not winner])


def test_serving_answers_with_the_winner_or_the_first_and_never_with_a_near_winner(
    store, no_tuning
):
    kernel = autotune(blocks(16, 32, 64, 128), key=["n"])(scale)
    with mode("serve"):
        assert call_scale(kernel) is kernel.configs[0]
        remember_scale(store, kernel, 1000, kernel.configs[2])
        remember_scale(store, kernel, 100_000, kernel.configs[3])
        kernel.cache.clear()
        assert call_scale(kernel, 1000) is kernel.configs[2]
        assert call_scale(kernel, 90_000) is kernel.configs[0]


def test_what_the_store_knows_is_not_tuned_again(store, no_tuning):
    kernel = autotune(blocks(16, 32, 64), key=["n"])(scale)
    remember_scale(store, kernel, 1000, kernel.configs[1])
    assert call_scale(kernel) is kernel.configs[1]
    assert kernel.configs_timings[kernel.configs[1]] == [1.0] * 3
    assert list(kernel.cache) == [(1000, "torch.float32", "torch.float32")]


def test_a_config_that_was_added_to_the_list_is_tuned(store, no_tuning):
    known = autotune(blocks(16, 32), key=["n"])(scale)
    remember_scale(store, known, 1000, known.configs[1])
    with pytest.raises(AssertionError, match="nothing was to be tuned"):
        call_scale(autotune(blocks(16, 32, 64), key=["n"])(scale))


def test_a_config_that_was_removed_from_the_list_does_not_win(store, no_tuning):
    known = autotune(blocks(16, 32, 64), key=["n"])(scale)
    remember_scale(store, known, 1000, known.configs[2])
    assert call_scale(autotune(blocks(16, 32), key=["n"])(scale)).kwargs["BLOCK"] < 64


def test_arguments_are_reset_before_the_launch_that_follows_a_race(store, quick_tuning):
    kernel = autotune(blocks(16, 64), key=["n"], reset_to_zero=["total_ptr"])(accumulate)
    x, total = torch.randn(64), torch.ones(64)
    for expected in (x, 2 * x):  # as with Triton: later calls find what the first one left
        kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, total_ptr=total, n=64)
        torch.testing.assert_close(total, expected)


def test_in_the_background_a_call_does_not_wait_and_a_later_one_has_the_winner(store, quick_tuning):
    kernel = autotune(blocks(16, 64), key=["n"])(scale)
    with mode("background"):
        assert call_scale(kernel) is kernel.configs[0]
        background.wait()
        assert call_scale(kernel) is kernel.configs[1]


def test_on_a_busy_machine_the_first_config_is_used_and_said_so(store, monkeypatch):
    def tune(job, store, run, settings, watch, workers):
        watch(Progress(0, 3, {}, None, None, None, "waiting", holder=1234))
        return Outcome(job.task, None, 0, 0, {}, None, None, 0.0, busy=True)

    monkeypatch.setattr("tritune.tuning.tuner.tune_case", tune)
    monkeypatch.setattr("tritune.policy.sources._warned", set())
    kernel = autotune(blocks(16, 32, 64), key=["n"])(scale)
    with pytest.warns(PolicyWarning) as warned:
        assert call_scale(kernel) is kernel.configs[0]
    waits, busy = (str(each.message) for each in warned if each.category is PolicyWarning)
    assert "waits for process 1234" in waits
    assert "this machine is busy" in busy


def test_those_who_listen_hear_of_the_winner(store, quick_tuning, monkeypatch, capsys):
    monkeypatch.setattr(triton.knobs.autotuning, "print", True)
    call_scale(autotune(blocks(16, 64), key=["n"])(scale))
    assert "best config selected: BLOCK: 64" in capsys.readouterr().out


def test_pruning_happens_in_the_program_and_one_config_needs_no_race(store, no_tuning):
    seen = {}

    def prune(configs, named_args, **kwargs):
        seen.update(named_args, given=sorted(kwargs))
        return [config for config in configs if config.kwargs["BLOCK"] == 32]

    kernel = autotune(
        blocks(16, 32, 64), key=["n"], prune_configs_by={"early_config_prune": prune}
    )(scale)
    assert call_scale(kernel).kwargs == {"BLOCK": 32}
    assert seen["n"] == 1000 and seen["given"] == ["grid", "warmup"]


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="nothing says who waits")
def test_within_the_process_a_busy_machine_leaves_the_first_config(store, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITUNE_BUSY")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tritune.policy.sources._warned", set())
    lock = threading.Lock()

    def hook(args):
        lock.locked()  # which keeps it from being sent to another process

    def bench(call, quantiles):
        begun = time.thread_time()
        while time.thread_time() < begun + 0.1:  # longer than a scheduler's slice
            call()
        return [1.0]

    kernel = autotune(blocks(16, 64, pre_hook=hook), key=["n"], do_bench=bench)(scale)
    with beside_a_spinner(), pytest.warns(UserWarning, match="this machine is busy"):
        assert call_scale(kernel) is kernel.configs[0]
    with Store(tmp_path / "store.sqlite") as opened:
        assert opened.tasks() == []


def test_what_cannot_be_sent_is_tuned_in_the_process_with_a_warning(store):
    lock = threading.Lock()
    calls = []

    def hook(args):
        with lock:
            calls.append(args["BLOCK"])

    kernel = autotune(
        blocks(16, 64, pre_hook=hook), key=["n"], do_bench=lambda call, quantiles: [call() or 1.0]
    )(scale)
    with pytest.warns(UserWarning, match=r"tuned within this process.*lock, which hook uses"):
        call_scale(kernel)
    assert calls[:2] == [16, 64]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call_scale(kernel) is kernel.configs[0]


def test_the_decorator_looks_like_tritons(store):
    configs = blocks(16, 32)
    ours, theirs = autotune(configs, ["n"])(scale), triton.autotune(configs, ["n"])(scale)
    assert isinstance(ours, type(theirs))
    for name in vars(theirs):
        assert hasattr(ours, name), name
    assert ours.fn is scale and ours.base_fn is scale.fn
    assert ours.arg_names == scale.arg_names
    assert ours.configs == configs and ours.keys == ["n"]


def test_compiling_ahead_compiles_every_config(store):
    kernel = autotune(blocks(16, 32), key=["n"])(scale)
    compiled = kernel.warmup(torch.float32, torch.float32, 64, grid=(1,))
    assert len({each.hash for each in compiled}) == 2


def test_a_symbol_that_is_tuned_and_given_is_an_error(store):
    kernel = autotune(blocks(16, 32), key=["n"])(scale)
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(1,)](torch.zeros(1), torch.zeros(1), 1, BLOCK=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "configs=.* or space="),
        ({"space": Space(()), "prune_configs_by": {"top_k": 1}}, "constraints into the space"),
        ({"configs": blocks(16, 32), "problem": ["m"]}, "names m, .* x_ptr, y_ptr, n, BLOCK"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(TrituneError, match=message):
        autotune(**arguments)(scale)


def test_configs_that_differ_in_what_cannot_be_stored_stay_apart():
    def one(args):
        pass

    def other(args):
        pass

    configs = [*blocks(16), *blocks(16, pre_hook=one), *blocks(16, pre_hook=other), *blocks(16)]
    points = points_of(configs)
    assert list(points.values()) == [configs[3], configs[1], configs[2]]


def test_constants_that_are_no_numbers_have_a_name_that_lasts():
    config = triton.Config({"DTYPE": tl.float16, "F": scale, "SHAPE": (1, 2), "BIAS": None})
    (point,) = points_of([config])
    assert point.as_kwargs() == {
        "DTYPE": "fp16",
        "F": f"{__name__}.scale",
        "SHAPE": "[1, 2]",
        "BIAS": "None",
        "num_warps": 4,
        "num_ctas": 1,
        "num_stages": 3,
    }


def test_a_point_of_a_space_sets_options_and_constants():
    config = config_of(Config.of(BLOCK=16, num_warps=2, waves_per_eu=1))
    assert config.num_warps == 2
    assert config.kwargs == {"BLOCK": 16, "waves_per_eu": 1}
