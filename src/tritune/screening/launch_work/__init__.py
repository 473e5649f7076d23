"""The work of a launch with a config, for the model that ranks configs (`ranking.py`).

One file per kind of kernel. Nothing here knows more of a kernel than its problem's fields and its
config: each function follows the loop of the device code with numbers in place of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tritune.errors import TrituneError
from tritune.screening.launch_work.attention import attention_work
from tritune.screening.launch_work.linear import linear_work
from tritune.screening.launch_work.paged import paged_attention_work
from tritune.screening.launch_work.rows import gated_work, rms_norm_work, rope_work
from tritune.targets.limits import Limits
from tritune.targets.ranking.work import LaunchWork

__all__ = ["WORKS", "work_of"]

Fields = Mapping[str, Any]

#: By the name of the kernel.
WORKS: Mapping[str, Callable[[Fields, Fields, Limits], LaunchWork]] = {
    "attention": attention_work,
    "paged_attention": paged_attention_work,
    "linear": linear_work,
    "linear_quantized": linear_work,
    "rms_norm": rms_norm_work,
    "gated": gated_work,
    "rope": rope_work,
}


def work_of(kernel: str, problem: Fields, config: Fields, limits: Limits) -> LaunchWork:
    """Return the work of a launch, given a problem's fields and a config's parameters."""
    if kernel not in WORKS:
        raise TrituneError(
            f"nothing is known of the work of kernel {kernel!r}, known: {', '.join(WORKS)}"
        )
    return WORKS[kernel](problem, config, limits)
