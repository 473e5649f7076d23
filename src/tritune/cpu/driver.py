"""Triton's driver interface: the CPU as a device.

Triton imports this module when it is imported itself, so nothing that can fail is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if "triton" not in sys.modules:
    # As in `compiler.py`: Triton must not find this module half made.
    sys.modules.pop(__name__, None)
    import triton  # noqa: F401

from triton.backends.driver import DriverBase

with contextlib.suppress(Exception):
    # From here on forks are noticed, for those whose parent uses torch before it uses a kernel.
    from tritune.cpu.launch import threads as _threads  # noqa: F401

if TYPE_CHECKING:
    import torch
    from triton.backends.compiler import GPUTarget

#: The CPU's place among Triton's devices. Not a number: those are GPUs.
DEVICE = "cpu"


@functools.cache
def unavailable_reason() -> str | None:
    """Return why the CPU backend cannot work in this process, or None if it can."""
    import importlib

    for name in ("torch", "llvmlite.binding"):
        try:
            importlib.import_module(name)
        except Exception as error:
            package = name.split(".")[0]
            return f"{package} cannot be imported ({type(error).__name__}: {error})"
    try:
        for name in ("features", "launch.threads", "launch.launcher", "launch.loader"):
            importlib.import_module(f"tritune.cpu.{name}")
        from tritune.cpu import features
        from tritune.cpu.launch import threads

        features.host()
        threads.count()
    except Exception as error:
        return f"tritune.cpu does not work here ({type(error).__name__}: {error})"
    return None


# Set while other drivers are asked, in case one of them asks this one in turn.
_asking = False


def _another_is_active() -> bool:
    global _asking
    from triton.backends import backends

    _asking = True
    try:
        return any(
            backend.driver.is_active()
            for backend in backends.values()
            if not backend.driver.__module__.startswith("tritune.cpu.")
        )
    finally:
        _asking = False


class CPUDriver(DriverBase):
    """Launches kernels on this machine's CPU."""

    def __init__(self) -> None:
        from tritune.cpu.launch.launcher import make_launcher
        from tritune.cpu.launch.runtime import Utils

        self.utils = Utils()
        self.launcher_cls = make_launcher

    @classmethod
    def is_active(cls) -> bool:
        """Return whether Triton should use the CPU: where there is no GPU, or on request."""
        wished = os.environ.get("TRITON_DEFAULT_BACKEND") == "cpu"
        if not wished and (_asking or _another_is_active()):
            return False
        reason = unavailable_reason()
        if reason is not None:
            warnings.warn(
                f"Triton has no device: tritune's CPU backend cannot be used, because {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        return reason is None

    def get_current_device(self) -> str:
        return DEVICE

    def set_current_device(self, device: object) -> None:
        """Do nothing: there is one CPU."""

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        from triton.backends.compiler import GPUTarget

        from tritune.cpu import features

        return GPUTarget("cpu", features.host().name, 1)

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        from tritune.cpu.launch.runtime import Interface

        return Interface()

    def map_python_to_cpp_type(self, ty: str) -> str:
        if ty.startswith("*"):
            return "void*"
        return _CPP_TYPES[ty]

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        import torch

        from tritune.cpu.launch.runtime import last_level_cache_bytes

        return torch.empty(last_level_cache_bytes() * 5 // 4, dtype=torch.int8)

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


_CPP_TYPES = {
    "i1": "int8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u1": "uint8_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "fp16": "double", "bf16": "double", "fp32": "double", "f32": "double", "fp64": "double",
}  # fmt: skip
