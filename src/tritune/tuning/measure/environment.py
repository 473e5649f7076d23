"""The circumstances of a run, stored with it so that its results can be judged later."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import triton

from tritune._version import __version__

if TYPE_CHECKING:
    from tritune.tuning.job import Settings


def environment(settings: Settings) -> Mapping[str, Any]:
    """Return the circumstances in which a run measures."""
    return {
        "effort": settings.effort.name,
        "trials": settings.effort.trials,
        "strategy": settings.strategy,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of everything that a time may depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tritune": __version__,
    }
