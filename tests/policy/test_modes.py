"""How a mode is asked for, and what `tune` does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.policy.stored import CPU, config, problem, put
from tritune.kernels.kernel import Kernel, Problem
from tritune.kernels.rms_norm import KERNEL
from tritune.policy import mode, modes
from tritune.policy import policy as policy_module
from tritune.policy.modes import Mode, ModeError
from tritune.policy.policy import Policy
from tritune.policy.sources import PolicyWarning
from tritune.workloads.tuning import tune_unseen


def test_a_mode_holds_until_the_block_ends() -> None:
    assert mode() == "default"
    with mode("serve"):
        assert mode() == "serve"
        with mode("tune"):
            assert mode() == "tune"
        assert mode() == "serve"
    assert mode() == "default"


def test_a_mode_can_be_entered_for_good() -> None:
    mode("tune")
    assert mode() == "tune"
    mode("default")
    assert mode() == "default"


@pytest.mark.parametrize("name", ["serve", "background"])
def test_the_environment_says_how_a_process_begins(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_MODE", name)
    assert Policy().mode.name == name


@pytest.mark.parametrize("name", ["background", "record"])
def test_a_mode_that_cannot_begin_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModeError("install it again")

    with mode("serve"):
        monkeypatch.setattr(modes, "hook", missing)
        for _ in range(2):
            with pytest.raises(ModeError, match="install it again"):
                mode(name)
        assert mode() == "serve"
    monkeypatch.setenv("TRITUNE_MODE", name)
    policy = Policy()
    for _ in range(2):
        with pytest.raises(ModeError, match="install it again"):
            policy.config_for(KERNEL, problem(8), CPU)


def test_a_mistyped_variable_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_MODE", "serv")
    with pytest.raises(ModeError, match="TRITUNE_MODE='serv': expected one of default, serve"):
        Policy().config_for(KERNEL, problem(), CPU)


def test_a_mistyped_mode_is_one_clear_error() -> None:
    with pytest.raises(ModeError, match="mode 'fast', allowed: default, serve, tune"):
        mode("fast")
    assert mode() == "default"


def test_pinned_without_a_file_says_what_is_missing() -> None:
    with pytest.raises(ModeError, match=r"needs the reviewed file.*TRITUNE_PINNED"):
        mode("pinned")


def test_the_tune_mode_calls_the_tuner_of_the_ops() -> None:
    assert modes.hook("tune") is tune_unseen
    with pytest.raises(ModeError, match="install it again"):
        modes.hook("dance")


class Tuner:
    """Stores a winner, as a tuner would, and remembers what it was asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[Problem] = []

    def __call__(self, kernel: Kernel, one: Problem, device: torch.device) -> None:
        assert (kernel, device) == (KERNEL, CPU)
        self.asked.append(one)
        put(self.path, {one: {config(2, 512): 1.0}})


def test_tune_mode_tunes_a_problem_when_it_is_first_met(store_path: Path) -> None:
    tuner = Tuner(store_path)
    policy = Policy(Mode("tune"), tuner)
    for _ in range(3):
        assert policy.config_for(KERNEL, problem(), CPU) == config(2, 512).as_kwargs()
    # What was learned from the first problem does not keep the second from being tuned.
    policy.config_for(KERNEL, problem(128), CPU)
    assert tuner.asked == [problem(), problem(128)]


def test_tune_mode_does_not_repeat_what_the_store_knows(store_path: Path) -> None:
    put(store_path, {problem(): {config(4, 128): 1.0}})
    tuner = Tuner(store_path)
    answer = Policy(Mode("tune"), tuner).config_for(KERNEL, problem(), CPU)
    assert answer == config(4, 128).as_kwargs()
    assert tuner.asked == []


def test_no_other_mode_tunes(store_path: Path) -> None:
    tuner = Tuner(store_path)
    Policy(Mode("default"), tuner).config_for(KERNEL, problem(), CPU)
    assert tuner.asked == []


def test_a_tuner_that_fails_costs_a_warning_and_no_call() -> None:
    def broken(*_: object) -> None:
        raise OSError("no space left")

    policy = Policy(Mode("tune"), broken)
    with pytest.warns(PolicyWarning, match=r"could not be tuned.*no space left"):
        assert policy.config_for(KERNEL, problem(), CPU)


def test_under_graph_capture_nothing_is_tuned_and_later_calls_make_up_for_it(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Tuner(store_path)
    policy = Policy(Mode("tune"), tuner)
    with monkeypatch.context() as capture:
        capture.setattr(policy_module, "capturing", lambda device: True)
        captured = [policy.config_for(KERNEL, problem(), CPU) for _ in range(2)]
        assert policy.answers_with((KERNEL, problem(), CPU), captured[-1]) is None
    assert captured[0] == captured[1]
    assert tuner.asked == []
    policy.config_for(KERNEL, problem(), CPU)
    assert tuner.asked == [problem()]
