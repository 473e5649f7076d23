"""Faults that are put into a kernel's configs cost themselves, and no more."""

import pytest
import torch
import triton
import triton.language as tl

from tritune import autotune
from tritune.store import Store
from tritune.testing import faulty
from tritune.tuning.autotune.tune_call import process_store


@triton.jit
def triple(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 3 * tl.load(x + at, at < n), at < n)


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    process_store.cache_clear()
    with Store(path) as opened:
        yield opened
    process_store.cache_clear()


def test_any_kernel_is_tuned_in_spite_of_them(store):
    faults = {16: "segfaults", 32: "wrong result", 64: "raises"}
    good = triton.Config({"BLOCK": 128})
    bad = [faulty(triton.Config({"BLOCK": block}), fault) for block, fault in faults.items()]
    kernel = autotune([good, *bad], key=["n"])(triple)
    x, out = torch.randn(500), torch.zeros(500)
    kernel[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, out, 500)
    torch.testing.assert_close(out, 3 * x)
    assert kernel.best_config is good
    (task,) = store.tasks()
    # Hooks run before kernels are compiled, too: what fails then has not compiled.
    reasons = {trial.config["BLOCK"]: trial.failure for trial in store.trials(task)}
    assert reasons == {128: None, 16: "crash", 32: "wrong_result", 64: "compile_error"}
