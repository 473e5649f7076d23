"""What torch says of a GPU becomes a target and a fingerprint; without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tritune.targets import device as devices
from tritune.targets.device import detect, target_of

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
    total_memory=85_029_158_912, gcnArchName="",
)  # fmt: skip
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", major=9, minor=4, multi_processor_count=304,
    total_memory=205_822_885_888, gcnArchName="gfx942:sramecc+:xnack-",
)  # fmt: skip
GPU = torch.device("cuda", 0)


@pytest.fixture
def torch_sees(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A function that has torch see a GPU and nothing else."""
    caches = (devices.target_of, devices._detect_gpu)

    def see(properties: SimpleNamespace) -> None:
        for cache in caches:
            cache.cache_clear()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        amd = bool(properties.gcnArchName)
        monkeypatch.setattr(torch.version, "hip", "6.4.1" if amd else None)
        monkeypatch.setattr(torch.version, "cuda", None if amd else "13.0")

    yield see
    for cache in caches:
        cache.cache_clear()


def test_nvidias_gpus_are_named_by_their_capability(torch_sees) -> None:
    torch_sees(H100)
    assert str(target_of(GPU)) == "cuda:90"
    found = detect(GPU)
    assert (found.name, found.cores, found.memory_bytes) == (H100.name, 132, H100.total_memory)
    assert found.driver.startswith("CUDA 13.0, driver ")


def test_amds_gpus_are_named_by_their_architecture_without_its_features(torch_sees) -> None:
    torch_sees(MI300X)
    assert str(target_of(GPU)) == "hip:gfx942"
    assert detect(GPU).driver == "HIP 6.4.1"


def test_another_driver_is_another_device(torch_sees, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_sees(MI300X)
    before = detect(GPU).fingerprint
    devices._detect_gpu.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "7.0.0")
    assert detect(GPU).fingerprint != before
