"""The Triton backend for CPUs. It serves any Triton program, and needs nothing else of tritune.

Triton finds it through its entry point and uses it where no GPU driver is active. On a machine
with a GPU, ask for it: `tritune.cpu.enable()`, or TRITON_DEFAULT_BACKEND=cpu in the environment.
"""

from __future__ import annotations

from typing import Any

__all__ = ["disable", "enable"]

# The drivers that were active before each enable(), the latest last; None: Triton had not chosen.
_replaced: list[Any] = []


def enable() -> None:
    """Make the CPU Triton's active device, whatever else this machine has.

    Raises LaunchError where the backend cannot work here, with the reason.
    """
    from triton.backends import Backend, backends
    from triton.runtime import driver as config

    from tritune.cpu.compiler import CPUBackend
    from tritune.cpu.driver import CPUDriver, unavailable_reason
    from tritune.errors import LaunchError

    reason = unavailable_reason()
    if reason is not None:
        raise LaunchError(f"the CPU backend cannot be used: {reason}")
    # Triton may have been told not to look for entry points (TRITON_BACKENDS_IN_TREE=1).
    backends.setdefault("cpu", Backend(CPUBackend, CPUDriver))
    # Not `config.active`: it would create a default driver, which fails where there is none.
    _replaced.append(config._active)
    if not isinstance(config._active, CPUDriver):
        config.set_active(CPUDriver())


def disable() -> None:
    """Undo the latest enable(); without one, do nothing."""
    from triton.runtime import driver as config

    if _replaced:
        config._active = _replaced.pop()
