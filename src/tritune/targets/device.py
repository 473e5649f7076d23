"""Identify devices by all that can change results: name, architecture, cores, memory and driver."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritune.targets import host
from tritune.targets.target import Target, TargetError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Device:
    name: str
    target: Target
    #: Multiprocessors of a GPU; threads that a CPU's kernels run on.
    cores: int
    memory_bytes: int
    driver: str

    @property
    def fingerprint(self) -> str:
        """Return a short digest that is stable, and different for devices that differ."""
        fields = {**dataclasses.asdict(self), "target": str(self.target)}
        if self.driver.startswith("LLVM "):
            # Part of every CPU's fingerprint since the first stored results: it must not follow
            # the package's version.
            fields["driver"] = f"tritune 0.1.0.dev0, {self.driver}"
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def target_of(device: torch.device) -> Target:
    """Return the target that code for a torch device is compiled for."""
    if device.type == "cpu":
        from tritune.cpu import features

        return Target("cpu", features.host().name)
    family, properties = _gpu(device)
    if family == "hip":
        return Target("hip", str(properties.gcnArchName).split(":")[0])
    return Target("cuda", properties.major * 10 + properties.minor)


_assumed: ContextVar[Target | None] = ContextVar("tritune_assumed_target", default=None)


def compile_target(device: torch.device) -> Target:
    """Return the target that calls on a torch device compile for now."""
    return _assumed.get() or target_of(device)


@contextmanager
def assumed_target(target: Target) -> Iterator[None]:
    """Compile calls in the block for this target, whatever device their tensors are on."""
    token = _assumed.set(target)
    try:
        yield
    finally:
        _assumed.reset(token)


def detect(device: torch.device) -> Device:
    """Describe the silicon behind a torch device."""
    if device.type == "cpu":
        from tritune.cpu.launch import threads

        # The number of threads can be changed at any time, and is part of what was measured.
        return _detect_cpu(threads.count())
    return _detect_gpu(device)


@functools.cache
def _detect_cpu(threads: int) -> Device:
    import llvmlite.binding
    import torch

    llvm = ".".join(map(str, llvmlite.binding.llvm_version_info))
    return Device(
        name=host.cpu_model() or platform.machine(),
        target=target_of(torch.device("cpu")),
        cores=threads,
        memory_bytes=host.memory_bytes(),
        driver=f"LLVM {llvm}",
    )


@functools.cache
def _detect_gpu(device: torch.device) -> Device:
    import torch

    family, properties = _gpu(device)
    if family == "hip":
        driver = f"HIP {torch.version.hip}"
    else:
        driver = f"CUDA {torch.version.cuda}, driver {_cuda_driver()}"
    return Device(
        name=str(properties.name),
        target=target_of(device),
        cores=int(properties.multi_processor_count),
        memory_bytes=int(properties.total_memory),
        driver=driver,
    )


def _cuda_driver() -> str:
    """Return the newest CUDA that the driver supports, which names the driver well enough."""
    import torch

    version = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = version() if version else 0
    return f"{number // 1000}.{number % 1000 // 10}"


def _gpu(device: torch.device) -> tuple[str, Any]:
    """Return the family of a GPU and torch's properties of it."""
    import torch

    if device.type != "cuda":
        raise TargetError(
            f"kernels cannot run on device {str(device)!r}: "
            "use 'cpu', or 'cuda' for a GPU of NVIDIA or AMD"
        )
    if not torch.cuda.is_available():
        raise TargetError(f"there is no device {str(device)!r}: torch sees no GPU")
    return "hip" if torch.version.hip else "cuda", torch.cuda.get_device_properties(device)
