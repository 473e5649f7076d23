"""`triton.autotune` kernels that know nothing of tritune are tuned, remembered and served by it."""

import copy
import json
import os
import subprocess
import sys
import threading
import zipfile

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner

from tritune.errors import TrituneError
from tritune.integrations import triton_autotune
from tritune.policy import mode
from tritune.policy.modes import Mode
from tritune.policy.process import POLICY
from tritune.policy.sources import PolicyWarning
from tritune.store import Store
from tritune.store.records import Samples, Trial
from tritune.tuning.autotune.pickling import TransferError
from tritune.tuning.autotune.recorded_calls import folder_of, recorded_calls
from tritune.tuning.autotune.tune_call import process_store
from tritune.tuning.autotune.tuned_kernel import TunedKernel
from tritune.tuning.job import Outcome

N = 1000


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < n), at < n)


@triton.jit
def double(y, n, BLOCK: tl.constexpr):
    """In place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(y + at, at < n), at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, at < n, other=0.0)))


@triton.jit
def picky(x, y, n, EVEN: tl.constexpr, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    """Refuses some configs, and what heuristics should have worked out."""
    tl.static_assert(EVEN and SQUARE == BLOCK * BLOCK)
    tl.static_assert(BLOCK != 32)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < n), at < n)


def blocks(*sizes, **more):
    return [triton.Config({"BLOCK": size}, **more) for size in sizes]


def grid(meta):
    return (triton.cdiv(N, meta["BLOCK"]),)


def check_scaled(kernel):
    x, y = torch.randn(N), torch.zeros(N)
    kernel[grid](x, y, N)
    torch.testing.assert_close(y, 2 * x)
    inner = kernel
    while not isinstance(inner, Autotuner):
        inner = inner.fn
    return inner.best_config.kwargs["BLOCK"]


#: Made before anything is enabled, as in a library that was imported before.
made_before = triton.autotune(blocks(16, 64), key=["n"])(scale)


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    process_store.cache_clear()
    triton_autotune.enable()
    with Store(path) as opened:
        yield opened
    triton_autotune.disable()
    process_store.cache_clear()


@pytest.fixture
def tuned(store, monkeypatch):
    """The tasks that were tuned, by a tuner that measures nothing: the last config wins."""
    tasks = []

    def tune(job, store, run, settings, watch, workers):
        tasks.append(job.task)
        job.spec.open().run(job.default)  # in the arguments' copies
        *others, winner = job.points.configs()
        for config in (winner, *others):
            ms = 1.0 if config is winner else 2.0
            samples = tuple(Samples(run, "final", number, (ms,) * 3) for number in range(6))
            store.add_trial(Trial(job.task, config, run, "2025-01-01", samples=samples))
        return Outcome(job.task, store.winner(job.task), 0, 0, {}, None, None, 0.0)

    monkeypatch.setattr("tritune.tuning.tuner.tune_case", tune)
    return tasks


@triton.autotune(blocks(16, 32, 64), key=[], restore_value=["y"])
@triton.jit
def without_key(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < n), at < n)


@pytest.mark.parametrize("kernel", [made_before, without_key], ids=["key", "no key"])
def test_a_kernel_is_tuned_once_and_then_known(kernel, tuned):
    kernel.cache.clear()
    assert check_scaled(kernel) == 64
    kernel.cache.clear()
    assert check_scaled(kernel) == 64
    assert len(tuned) == 1
    assert tuned[0].kernel.startswith(__name__)


def test_heuristics_around_and_inside_have_their_say(store):
    """Tuned for real: a config that does not compile costs itself."""
    kernel = triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})(
        triton.autotune(blocks(64, 32, 16), key=["n"], warmup=1, rep=1)(
            triton.heuristics({"SQUARE": lambda args: args["BLOCK"] ** 2})(picky)
        )
    )
    assert check_scaled(kernel) in (16, 64)
    (task,) = store.tasks()
    failures = {trial.config["BLOCK"]: trial.failure for trial in store.trials(task)}
    assert failures == {64: None, 32: "compile_error", 16: None}


def test_what_works_in_place_is_done_once(tuned):
    kernel = triton.autotune(blocks(16, 64), key=["n"])(double)
    x = torch.randn(N)
    y = x.clone()
    kernel[grid](y, n=N)
    torch.testing.assert_close(y, 2 * x)
    assert len(tuned) == 1


def test_what_is_reset_is_reset_in_every_process_as_by_triton(tuned):
    """A process that finds the winner in the store has run no race, and must not differ by it."""
    for _ in range(2):
        kernel = triton.autotune(blocks(16, 64), key=["n"], reset_to_zero=["out"])(total)
        x, out = torch.randn(N), torch.ones(1)
        for calls in (1, 2):
            kernel[grid](x, out, N)
            torch.testing.assert_close(out[0], calls * x.sum(), rtol=1e-4, atol=1e-3)
    assert len(tuned) == 1


def test_a_subclass_and_a_copy_go_the_same_way(tuned):
    class Special(Autotuner):
        def run(self, *args, **kwargs):
            return super().run(*args, **kwargs)

    special = Special(scale, scale.arg_names, blocks(16, 64), ["n"], None, None)
    assert check_scaled(special) == 64
    other = copy.copy(special)
    other.configs, other.cache = blocks(16, 128), {}
    assert check_scaled(other) == 128
    assert check_scaled(special) == 64
    assert len(tuned) == 2


def test_pruning_is_done_by_the_program(tuned):
    seen = []

    def prune(configs, named, **kwargs):
        seen.append(named["n"])
        return configs[1:]

    kernel = triton.autotune(
        blocks(16, 32, 64), key=["n"], prune_configs_by={"early_config_prune": prune}
    )(scale)
    assert check_scaled(kernel) == 64
    assert seen == [N]


class Wrapper(triton.KernelInterface):
    """What a library may put between Triton's decorators."""

    def __init__(self, fn):
        self.fn, self.arg_names, self.lock = fn, fn.arg_names, threading.Lock()

    def run(self, *args, **kwargs):
        with self.lock:
            self.block = kwargs["BLOCK"]
            return self.fn.run(*args, **kwargs)


def in_turn(milliseconds):
    """A `do_bench` that runs the call and tells times one after the other."""
    times = iter(milliseconds)

    def do_bench(call, quantiles):
        call()
        return [next(times)] * 3

    return do_bench


def test_a_wrapper_nobody_knows_is_tuned_in_the_process_and_remembered(store):
    times = {16: 3.0, 64: 1.0}
    for _ in range(2):  # the second finds the winner in the store, and measures nothing
        wrapped = Wrapper(scale)

        def do_bench(call, quantiles, wrapped=wrapped, times=times):
            call()
            return [times[wrapped.block]] * 3

        kernel = triton.autotune(blocks(16, 64), key=["n"], do_bench=do_bench)(wrapped)
        times = {}
        if not store.tasks():
            with pytest.warns(UserWarning, match="tuned within this process"):
                assert check_scaled(kernel) == 64
        else:
            assert check_scaled(kernel) == 64


def test_within_the_process_a_config_that_fails_costs_itself(store):
    def hook(args):
        if args["BLOCK"] == 16:
            raise RuntimeError(f"not with 16 {threading.current_thread()}")

    lock = threading.Lock()

    def pre_hook(args, reset_only=False):
        with lock:
            pass

    kernel = triton.autotune(
        blocks(16, 64, pre_hook=hook), key=["n"], pre_hook=pre_hook, do_bench=in_turn([1.0] * 9)
    )(double)
    x = torch.randn(N)
    y = x.clone()
    with pytest.warns(UserWarning, match="lock, which pre_hook uses"):
        kernel[grid](y, N)
    torch.testing.assert_close(y, 2 * x)  # candidates ran on copies
    failing = triton.autotune(
        blocks(16, 16, pre_hook=hook, num_warps=2) + blocks(16, pre_hook=hook),
        key=["n"],
        pre_hook=pre_hook,
    )(double)
    with pytest.raises(RuntimeError, match="not with 16"):
        failing[grid](y, N)


def test_serving_tunes_nothing(store, monkeypatch):
    monkeypatch.setattr("tritune.tuning.tuner.tune_case", None)
    monkeypatch.setenv("TRITUNE_AUTOTUNE", "serve")
    assert check_scaled(triton.autotune(blocks(32, 64), key=["n"])(scale)) == 32
    wrapped = triton.autotune(blocks(32, 64), key=["n"], do_bench=in_turn([]))(Wrapper(scale))
    assert check_scaled(wrapped) == 32
    assert store.tasks() == []


def test_recording_writes_calls_down_and_tunes_nothing(store, monkeypatch):
    monkeypatch.setattr("tritune.tuning.tuner.tune_case", None)
    kernel = triton.autotune(blocks(32, 64), key=["n"])(scale)
    with mode("record"):
        for _ in range(2):
            kernel.cache.clear()
            assert check_scaled(kernel) == 32
    (call,) = recorded_calls(store)
    assert call.name == f"{__name__}.scale"
    assert call.problem.fields() == {"n": N, "x.dtype": "float32", "y.dtype": "float32"}
    assert [count for *_, count in store.met_problems()] == [2]
    with call.unpacked() as written:
        case = written.spec.open()
        case.restore()
        (y,) = case.run(call.call_task.candidates.default)[:1]
    assert y.shape == (N,) and y.std() > 1  # twice something like what was recorded


def test_a_recorded_call_that_another_user_could_have_written_is_not_read(store, monkeypatch):
    """Reading one runs code."""
    monkeypatch.setattr("tritune.policy.sources._warned", set())
    kernel = triton.autotune(blocks(32, 64), key=["n"])(scale)
    with mode("record"):
        check_scaled(kernel)
    (call,) = recorded_calls(store)
    assert call.path.stat().st_mode & 0o077 == 0
    call.path.chmod(0o660)
    with pytest.warns(PolicyWarning, match="another user could have written it"):
        assert recorded_calls(store) == []
    with pytest.raises(TransferError, match="chmod 600"), call.unpacked():
        raise AssertionError("it was read")


def test_a_call_that_an_older_version_recorded_is_not_tuned(store, monkeypatch):
    monkeypatch.setattr("tritune.policy.sources._warned", set())
    folder = folder_of(store)
    folder.mkdir()
    with zipfile.ZipFile(folder / "scale-0.call", "w") as archive:
        archive.writestr("about.json", json.dumps({"python": [3, 11], "kernel": "scale"}))
    (folder / "scale-0.call").chmod(0o600)
    with pytest.warns(PolicyWarning, match="record the call again"):
        assert recorded_calls(store) == []


def test_where_tritune_cannot_be_used_triton_does_it_itself(store, monkeypatch):
    def broken(*_, **__):
        raise ImportError("no torch today")

    monkeypatch.setattr(TunedKernel, "__init__", broken)
    kernel = triton.autotune(blocks(32, 64), key=["n"], do_bench=in_turn([2.0, 1.0]))(scale)
    with pytest.warns(RuntimeWarning, match="left as it is: .*no torch today"):
        assert check_scaled(kernel) == 64


def test_what_nobody_foresaw_is_tritons_affair(store, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("tritune.tuning.autotune.tuned_kernel.tune_call", broken)
    kernel = triton.autotune(blocks(32, 64), key=["n"], do_bench=in_turn([1.0] * 14))(scale)
    with pytest.warns(UserWarning, match="a mistake"):
        assert check_scaled(kernel) == 32


def test_a_mistaken_mode_is_an_error_and_no_reason_to_tune(store, monkeypatch):
    monkeypatch.setattr(POLICY, "_mode", Mode("pinned", "nowhere.json"))
    with pytest.raises(TrituneError, match="nowhere"):
        check_scaled(triton.autotune(blocks(32, 64), key=["n"])(scale))


def test_disabling_gives_triton_back(store):
    triton_autotune.disable()
    assert not triton_autotune.is_enabled()
    kernel = triton.autotune(blocks(32, 64), key=["n"], do_bench=in_turn([2.0, 1.0]))(scale)
    assert check_scaled(kernel) == 64
    assert store.tasks() == []


@pytest.mark.parametrize(
    ("value", "enabled"), [(None, False), ("0", False), ("1", True), ("serve", True)]
)
def test_the_environment_reaches_programs_that_tritune_did_not_start(value, enabled):
    environment = {k: v for k, v in os.environ.items() if k != "TRITUNE_AUTOTUNE"}
    if value is not None:
        environment["TRITUNE_AUTOTUNE"] = value
    program = (
        "import sys, triton\n"
        "from triton.runtime.autotuner import Autotuner\n"
        "print(hasattr(Autotuner.run, '__wrapped__'), 'tritune.integrations' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(enabled), str(enabled)], done.stderr
