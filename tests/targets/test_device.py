"""What is found out about a device, and what tells two of them apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tritune.cpu import features
from tritune.cpu.launch import threads
from tritune.targets.device import Device, detect, target_of
from tritune.targets.target import Target, TargetError

CPU = torch.device("cpu")


def test_the_cpu_is_the_one_that_code_is_made_for() -> None:
    device = detect(CPU)
    assert device.target == target_of(CPU) == Target("cpu", features.host().name)
    assert features.resolve(str(device.target.arch)) == features.host()
    assert Target.parse(str(device.target)) == device.target


def test_the_cpu_is_described_by_what_can_change_results() -> None:
    device = detect(CPU)
    assert device.name
    assert device.cores == threads.count()
    assert device.memory_bytes > 0
    assert "LLVM" in device.driver


def test_looking_again_gives_the_same_device() -> None:
    assert detect(CPU) is detect(torch.device("cpu"))
    assert detect(CPU).fingerprint == detect(torch.device("cpu")).fingerprint


def test_another_number_of_threads_is_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    before = detect(CPU)
    monkeypatch.setattr(threads, "_source", lambda: before.cores + 1)
    after = detect(CPU)
    assert after.cores == before.cores + 1
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"target": Target("cuda", 80)},
        {"cores": 1},
        {"memory_bytes": 1},
        {"driver": "12.9"},
    ],
)
def test_a_device_that_differs_in_one_fact_has_another_fingerprint(change: dict) -> None:
    device = Device("GPU", Target("cuda", 90), 132, 80 * 2**30, "13.0")
    assert dataclasses.replace(device).fingerprint == device.fingerprint
    assert dataclasses.replace(device, **change).fingerprint != device.fingerprint


@pytest.mark.parametrize("look", [detect, target_of])
def test_a_device_without_kernels_is_refused_with_what_there_is(look: object) -> None:
    with pytest.raises(TargetError, match=r"'meta'.*'cpu'"):
        look(torch.device("meta"))  # type: ignore[operator]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(TargetError, match="torch sees no GPU"):
        detect(torch.device("cuda"))


@pytest.mark.gpu
def test_a_gpu_is_described_by_what_can_change_results() -> None:
    device = detect(torch.device("cuda"))
    properties = torch.cuda.get_device_properties(0)
    assert device.name == properties.name
    assert device.cores == properties.multi_processor_count
    assert device.memory_bytes == properties.total_memory
    assert Target.parse(str(device.target)) == device.target
