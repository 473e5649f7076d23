"""tritune: write an LLM kernel once in Triton, run it fast on any device.

Importing the package loads neither triton nor torch; a public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tritune._version import __version__

# Public name -> (module that defines it, its name there). "" stands for the module itself.
_PUBLIC: dict[str, tuple[str, str]] = {
    "cpu": ("tritune.cpu", ""),
    "errors": ("tritune.errors", ""),
    "TrituneError": ("tritune.errors", "TrituneError"),
}

__all__ = ["TrituneError", "__version__", "cpu", "errors"]


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
