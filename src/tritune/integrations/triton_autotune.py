"""Every `triton.autotune` kernel of a process, whoever wrote it, with tritune's memory.

One method of one class of Triton's is replaced, `Autotuner.run`: kernels that were made before, in
any library, go through it too, and stay what they are for everybody who looks at them.

`import tritune`, and so `import triton`, loads this module if TRITUNE_AUTOTUNE is set, so nothing
that can fail is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_MODULE = "triton.runtime.autotuner"
#: Where one of Triton's autotuners keeps what answers for it.
_KEPT = "_tritune"


def enable() -> None:
    """Have tritune tune `triton.autotune` kernels from now on."""
    import triton.runtime.autotuner

    _patch(triton.runtime.autotuner.Autotuner)


def disable() -> None:
    """Undo `enable`: what was tuned so far stays in use, the rest is Triton's affair again."""
    import triton.runtime.autotuner

    owner = triton.runtime.autotuner.Autotuner
    if is_enabled():
        owner.run = owner.run.__wrapped__


def is_enabled() -> bool:
    """Return whether `triton.autotune` kernels are tuned by tritune."""
    module: Any = sys.modules.get(_MODULE)
    return module is not None and getattr(module.Autotuner.run, _KEPT, False)


def enable_on_import() -> None:
    """Do as `enable`, while `import triton` is under way and its autotuner is not made yet."""
    if getattr(sys.modules.get(_MODULE), "Autotuner", None) is not None:
        enable()
    else:
        sys.meta_path.insert(0, _WhenReady())


class _WhenReady(MetaPathFinder):
    """Finds no module. It is asked for each that is imported, and so sees when Triton's autotuner
    is there: Triton imports more after it.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        owner = getattr(sys.modules.get(_MODULE), "Autotuner", None)
        if owner is not None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _patch(owner)


def _patch(owner: Any) -> None:
    if getattr(owner.run, _KEPT, False):
        return

    @functools.wraps(owner.run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuned = vars(self).get(_KEPT)
        if tuned is None or tuned.owner is not self:  # a copy of the kernel brings the original's
            tuned = vars(self)[_KEPT] = _adopt(self)
        return tuned.run(args, kwargs)

    setattr(run, _KEPT, True)
    owner.run = run


def _adopt(autotuner: Any) -> Any:
    """Return the object that launches an autotuner's kernel from now on."""
    try:
        from tritune.tuning.autotune.tuned_kernel import TunedKernel

        return TunedKernel(autotuner, adopted=True)
    except Exception as error:
        warnings.warn(
            f"triton.autotune is left as it is: tritune cannot be used "
            f"({type(error).__name__}: {error})",
            RuntimeWarning,
            stacklevel=3,
        )
        _tell_left(autotuner, error)
        return _AsTriton(autotuner)


def _tell_left(autotuner: Any, error: Exception) -> None:
    with contextlib.suppress(Exception):
        from tritune.tuning.autotune.run_log import SKIPPED, Event, log

        name = autotuner.base_fn.__qualname__
        log(Event(name, SKIPPED, reason=f"{type(error).__name__}: {error}"))


class _AsTriton:
    """Answers as Triton does."""

    def __init__(self, autotuner: Any) -> None:
        self.owner = autotuner

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import triton.runtime.autotuner

        run = triton.runtime.autotuner.Autotuner.run
        return getattr(run, "__wrapped__", run)(self.owner, *args, **kwargs)
