"""liger-kernel, which nobody here wrote, runs on the CPU backend under `tritune run`, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tritune.store import Store

pytest.importorskip("liger_kernel", reason="liger-kernel is not installed: pip install -e '.[dev]'")

PROGRAM = Path(__file__).with_name("liger_program.py")
KERNELS = (
    "rms_norm fused_add_rms_norm layer_norm group_norm swiglu geglu relu_squared softmax rope "
    "cross_entropy fused_linear_cross_entropy kl_div dyt"
).split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("liger") / "store.sqlite"


@pytest.fixture(scope="module")
def distances(store: Path) -> dict[str, float | str]:
    """How far each kernel is from torch, relative to the largest element."""
    command = [sys.executable, "-m", "tritune.cli.main", "run", str(PROGRAM)]
    environment = {**os.environ, "TRITUNE_STORE": str(store)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_computes_what_torch_computes(kernel: str, distances: dict[str, float | str]) -> None:
    distance = distances[kernel]
    assert isinstance(distance, float), distance
    assert distance < 2e-6


def test_what_it_tunes_is_remembered(store: Path, distances: dict[str, float | str]) -> None:
    with Store(store) as opened:
        (task,) = opened.tasks()
        trials = opened.trials(task)
    assert task.kernel == "liger_kernel.ops.dyt._dyt_fwd_kernel"
    assert len(trials) == 18
    assert not any(trial.failure for trial in trials)
