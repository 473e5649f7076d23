"""tritune: write an LLM kernel once in Triton, run it fast on any device.

Importing the package loads neither triton nor torch; a public name is loaded when it is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tritune._version import __version__

# Public name -> (module that defines it, its name there). "" stands for the module itself.
_PUBLIC: dict[str, tuple[str, str]] = {
    "cpu": ("tritune.cpu", ""),
    "errors": ("tritune.errors", ""),
    "TrituneError": ("tritune.errors", "TrituneError"),
    "autotune": ("tritune.tuning.autotune.decorator", "autotune"),
    "tune": ("tritune.workloads.tuning", "tune"),
    "mode": ("tritune.policy", "mode"),
    "warm": ("tritune.policy", "warm"),
    "Config": ("tritune.space", "Config"),
    "Parameter": ("tritune.space", "Parameter"),
    "Space": ("tritune.space", "Space"),
    "Store": ("tritune.store", "Store"),
    "attention": ("tritune.ops.attention", "attention"),
    "attention_varlen": ("tritune.ops.attention", "attention_varlen"),
    "paged_attention": ("tritune.ops.paged_attention", "paged_attention"),
    "rms_norm": ("tritune.ops.rms_norm", "rms_norm"),
    "add_rms_norm": ("tritune.ops.rms_norm", "add_rms_norm"),
    "rope": ("tritune.ops.rope", "rope"),
    "silu_mul": ("tritune.ops.gated", "silu_mul"),
    "gelu_mul": ("tritune.ops.gated", "gelu_mul"),
    "linear": ("tritune.ops.linear", "linear"),
    "quantize_weight": ("tritune.ops.quantize", "quantize_weight"),
    "QuantizedWeight": ("tritune.ops.quantize", "QuantizedWeight"),
    "sdpa": ("tritune.integrations.sdpa", "sdpa"),
    "enable": ("tritune.integrations", "enable"),
    "disable": ("tritune.integrations", "disable"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    try:
        module_name, attribute = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    module = import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


if os.environ.get("TRITUNE_AUTOTUNE", "") not in ("", "0"):
    import contextlib

    # Every `import triton` loads tritune, for its CPU backend: this is how a program is reached
    # that was not started by `tritune run`. Whatever goes wrong, Triton is left as it is.
    with contextlib.suppress(Exception):
        from tritune.integrations.triton_autotune import enable_on_import

        enable_on_import()
