"""Tuning every `triton.autotune` kernel of a process with tritune, whoever wrote it.

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
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULE = "triton.runtime.autotuner"
#: The attribute of one of Triton's autotuners that holds its `TunedKernel`.
_KEPT = "_tritune"


def enable() -> None:
    """Have tritune tune `triton.autotune` kernels from now on."""
    import triton.runtime.autotuner

    _patch(triton.runtime.autotuner.Autotuner)


def disable() -> None:
    """Undo `enable`: what was tuned so far stays in use, the rest is left to Triton again."""
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
    """Finds no module. It is called for each that is imported, and so sees when Triton's autotuner
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
    original = owner.run
    if getattr(original, _KEPT, False):
        return

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuned = vars(self).get(_KEPT)
        if tuned is None or tuned.owner is not self:  # a copy of the kernel brings the original's
            tuned = vars(self)[_KEPT] = _adopt(self, original)
        return tuned.run(args, kwargs)

    setattr(run, _KEPT, True)
    owner.run = run


def _adopt(autotuner: Any, original: Callable[..., Any]) -> Any:
    """Return the object that launches an autotuner's kernel from now on."""
    try:
        from tritune.tuning.autotune.tuned_kernel import TunedKernel

        return TunedKernel(autotuner, adopted=True)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"triton.autotune is left as it is: tritune cannot be used ({reason})",
            RuntimeWarning,
            stacklevel=3,
        )
        with contextlib.suppress(Exception):
            from tritune.tuning.autotune.run_log import SKIPPED, Event, log

            log(Event(autotuner.base_fn.__qualname__, SKIPPED, reason=reason))

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return original(autotuner, *args, **kwargs)

        return SimpleNamespace(owner=autotuner, run=run)
