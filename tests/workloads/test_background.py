"""Background mode: calls are counted, another process tunes, winners are swapped in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.policy.conftest import store_path as store_path
from tests.policy.stored import CPU, config, problem
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import policy as policy_module
from tritune.policy.modes import Mode
from tritune.policy.policy import Policy
from tritune.policy.sources import PolicyWarning
from tritune.store import Store
from tritune.store.records import problem_text
from tritune.targets.device import detect
from tritune.workloads import background

# Stands in for the tuner in the process that is started: it answers what was met, or fails.
STAND_IN = """
import os, sys, types

def tune_recorded(location, device, budget_seconds):
    from pathlib import Path
    from tests.policy.stored import config, problem, put
    from tritune.store import Store
    if os.environ.get("STAND_IN") == "fails":
        raise SystemExit("out of luck")
    if os.environ.get("STAND_IN") == "finds the device taken":
        from tritune.errors import DeviceTakenError
        raise DeviceTakenError("process 1 measures on cpu")
    with Store(location) as store:
        met = store.met_problems()
    assert [count for _, _, _, count in met] == [3, 1], met
    assert os.environ["TRITUNE_MODE"] == "default"
    assert os.getpriority(os.PRIO_PROCESS, 0) == 19
    put(Path(os.environ["TRITUNE_STORE"]), {problem(64): {config(2, 512): 1.0}})

module = types.ModuleType("tritune.workloads.tuning")
module.tune_recorded = tune_recorded
sys.modules["tritune.workloads.tuning"] = module
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, root / "src", root))))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Policy]:
    """A policy in background mode whose thread never wakes: the tests say when it looks."""
    monkeypatch.setenv("TRITUNE_BACKGROUND_SECONDS", "1000000")
    policy = Policy()
    policy.enter(Mode("background"))
    yield policy
    policy.enter(Mode())


def looks(policy: Policy) -> background.Background:
    assert isinstance(policy._background, background.Background)
    return policy._background


def test_problems_met_are_tuned_elsewhere_and_the_winner_is_swapped_in(
    watched: Policy, stand_in: None
) -> None:
    before = [watched.config_for(KERNEL, problem(64), CPU) for _ in range(3)]
    watched.config_for(KERNEL, problem(8), CPU)
    looks(watched).step()
    process = looks(watched).tuners[CPU]._process
    assert process is not None
    assert process.wait() == 0
    assert watched.config_for(KERNEL, problem(64), CPU) is before[0]
    assert looks(watched).step() == 1
    assert watched.config_for(KERNEL, problem(64), CPU) == config(2, 512).as_kwargs()


def test_a_tuner_that_fails_is_a_warning(
    watched: Policy, stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "fails")
    watched.config_for(KERNEL, problem(), CPU)
    looks(watched).step()
    process = looks(watched).tuners[CPU]._process
    assert process is not None
    process.wait()
    with pytest.warns(PolicyWarning, match="background tuning on cpu failed: out of luck"):
        looks(watched).step()


def test_a_tuner_that_found_the_device_taken_is_started_again_without_a_word(
    watched: Policy,
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.setenv("STAND_IN", "finds the device taken")
    watched.config_for(KERNEL, problem(), CPU)
    looks(watched).step()
    tuner = looks(watched).tuners[CPU]
    first = tuner._process
    assert first is not None
    assert first.wait() == background.TRY_LATER
    looks(watched).step()
    assert tuner._process not in (None, first)
    assert not [each for each in recwarn if each.category is PolicyWarning]


def test_counts_are_written_down_when_the_mode_ends(watched: Policy, store_path: Path) -> None:
    for rows in (64, 64, 8):
        watched.config_for(KERNEL, problem(rows), CPU)
    watched.enter(Mode())
    watched.config_for(KERNEL, problem(64), CPU)
    with Store(store_path) as store:
        met = store.met_problems()
    device = detect(CPU).fingerprint
    assert met == [
        (KERNEL.name, problem_text(problem(64).fields()), device, 2),
        (KERNEL.name, problem_text(problem(8).fields()), device, 1),
    ]


def test_forced_and_captured_calls_are_not_counted(
    watched: Policy, monkeypatch: pytest.MonkeyPatch, store_path: Path
) -> None:
    with watched.forced(KERNEL, config(2, 512)):
        watched.config_for(KERNEL, problem(64), CPU)
    with monkeypatch.context() as capture:
        capture.setattr(policy_module, "capturing", lambda device: True)
        watched.config_for(KERNEL, problem(64), CPU)
    watched.enter(Mode())
    assert not store_path.exists()


def test_a_store_that_cannot_be_written_costs_a_warning(watched: Policy, store_path: Path) -> None:
    watched.config_for(KERNEL, problem(64), CPU)
    store_path.mkdir()
    with pytest.warns(PolicyWarning, match="could not be recorded"):
        watched.enter(Mode())


def test_one_process_at_a_time_tunes_for_a_store(store_path: Path) -> None:
    program = (
        "from tritune.workloads.background import alone\n"
        f"with alone({str(store_path)!r}) as is_alone: print(is_alone)"
    )
    with background.alone(str(store_path)) as is_alone:
        assert is_alone
        with background.alone(str(store_path) + "-of-others") as elsewhere:
            assert elsewhere
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "False"
    with background.alone(str(store_path)) as is_alone:
        assert is_alone


def test_the_process_ends_with_the_program_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys, types\n"
        "module = types.ModuleType('tritune.workloads.tuning')\n"
        "module.tune_recorded = lambda *_: (print('tuning', flush=True), signal.pause())\n"
        "sys.modules['tritune.workloads.tuning'] = module\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, "-m", "tritune.workloads.background", "--until-input-ends"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline().strip() == "tuning"
    process.stdin.close()
    assert process.wait() == 0
