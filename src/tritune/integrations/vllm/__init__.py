"""vLLM's attention computed by `tritune.paged_attention`.

vLLM finds `register` through its entry-point group `vllm.general_plugins` and calls it in each of
its processes. VLLM_PLUGINS says which plug-ins it loads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

#: What `--attention-backend` calls it.
NAME = "TRITUNE"

_PACKAGE = "tritune.integrations.vllm"
_BACKEND = f"{_PACKAGE}.backend.TrituneAttentionBackend"
_CPU_BACKEND = f"{_PACKAGE}.cpu.TrituneCPUAttentionBackend"


def register() -> None:
    """Make the attention backend known to this process; called again, it does nothing.

    On a GPU it is one choice among others, `--attention-backend TRITUNE`. On a CPU vLLM allows no
    choice, so its own backend is replaced, unless somebody else has replaced it or Triton does not
    know the CPU backend.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        if NAME not in AttentionBackendEnum.__members__:
            register_backend(NAME, _BACKEND)
            # vLLM sends the member to processes that have not loaded their plug-ins yet. An enum
            # member is pickled by its value, which they do not know.
            AttentionBackendEnum[NAME].__reduce_ex__ = _pickled
        if _runs_on_cpu() and not AttentionBackendEnum.CPU_ATTN.is_overridden():
            register_backend(AttentionBackendEnum.CPU_ATTN, _CPU_BACKEND)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        # A vLLM of another time must start all the same.
        logging.getLogger(__name__).warning(
            "tritune's attention is left out: this vLLM is not one it knows, 0.32 is (%s: %s)",
            type(error).__name__,
            error,
        )


def registered() -> Any:
    """Return the member of vLLM's enum, registered in this process if it was not."""
    register()
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return AttentionBackendEnum[NAME]


def _pickled(protocol: Any) -> tuple[Callable[[], Any], tuple[()]]:
    """Pickle the member as a call, so that loading it imports this module."""
    return registered, ()


def _runs_on_cpu() -> bool:
    """Return whether Triton has found the CPU backend: TRITON_BACKENDS_IN_TREE=1 hides it."""
    from triton.backends import backends

    return "cpu" in backends
