"""Which config a call uses. Until there is a policy, that is the kernel's default."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tritune.kernels.kernel import Kernel, Problem


@functools.cache
def config_for(kernel: Kernel, problem: Problem, device: torch.device) -> dict[str, Any]:
    """Keyword arguments for the kernel's launch: a dictionary look-up after the first call."""
    family, arch = device_target(device)
    return kernel.default(problem, family, arch).as_kwargs()


@functools.cache
def device_target(device: torch.device) -> tuple[str, int | str]:
    """The family and architecture that code for a torch device is made for."""
    if device.type == "cuda":
        if torch.version.hip:
            arch = str(torch.cuda.get_device_properties(device).gcnArchName)
            return "hip", arch.split(":")[0]
        major, minor = torch.cuda.get_device_capability(device)
        return "cuda", major * 10 + minor
    return "cpu", "host"
