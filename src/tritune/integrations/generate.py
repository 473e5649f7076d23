"""A wrapper around every `model.generate` of a transformers program: the model computes with
tritune while it runs.

Nothing of transformers is imported here: this waits for the program to do so.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tritune.integrations.enabled import Enabled
from tritune.tuning.autotune.run_log import GENERATE, ROUTED, SKIPPED, Event, log, log_once

#: Attention that may be replaced: what transformers uses by default.
_DEFAULTS = ("sdpa", "eager")
#: Printed at the end of `tritune run`.
_ROUTED = Event(GENERATE, ROUTED)
_TRAINING = Event(GENERATE, SKIPPED, reason="the model is in training mode")
_WEIGHTS = Event(GENERATE, SKIPPED, reason="attention weights are wanted")


def patch_generate(utils: ModuleType) -> Callable[[], None]:
    """Wrap `GenerationMixin.generate` of transformers.generation.utils; returns the way back."""
    mixin = utils.GenerationMixin
    original = mixin.generate
    running = _Running()

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        reason = _reason_against(self, kwargs)
        if reason is not None:
            log_once(reason)
            return original(self, *args, **kwargs)
        with running.enter(self):
            return original(self, *args, **kwargs)

    mixin.generate = generate

    def restore() -> None:
        mixin.generate = original

    return restore


class _Running:
    """Models whose `generate` runs: changed by the first call, changed back after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[int, tuple[int, Enabled]] = {}

    def enter(self, model: Any) -> Enabled:
        """Return a context in which the model is changed; calls may overlap."""
        with self._lock:
            count, enabled = self._models.get(id(model), (0, None))
            enabled = enabled or _changed(model)
            self._models[id(model)] = count + 1, enabled
        context = Enabled()
        context.add("generate", lambda: self._leave(model))
        return context

    def _leave(self, model: Any) -> None:
        with self._lock:
            count, enabled = self._models.pop(id(model))
            if count > 1:
                self._models[id(model)] = count - 1, enabled
            else:
                enabled.disable()


def _reason_against(model: Any, kwargs: dict[str, Any]) -> Event | None:
    """Return why the model is skipped; None where only rounding would change the result."""
    if getattr(model, "training", True):
        return _TRAINING
    settings = (kwargs.get("generation_config"), getattr(model, "generation_config", None))
    wants_weights = kwargs.get("output_attentions") or any(
        getattr(setting, "output_attentions", False)
        for setting in (*settings, getattr(model, "config", None))
    )
    return _WEIGHTS if wants_weights else None


def _log(enabled: Enabled) -> None:
    """Log that a model generates with tritune, and why attention layers were skipped."""
    if enabled.changed:
        log_once(_ROUTED)
    for reason in enabled.left.get("attention", {}):
        log(Event(GENERATE, SKIPPED, reason=reason))


def _changed(model: Any) -> Enabled:
    """Change a model, if that is possible; what is returned undoes it."""
    try:
        from tritune.integrations.transformers.model import enable_model, is_enabled

        if is_enabled(model):
            return Enabled()
        attention = model.config._attn_implementation in _DEFAULTS
        enabled = enable_model(model, attention=attention, norms=False, rotary=False, gated=False)
        if not attention:
            enabled.leave("attention", f"{model.config._attn_implementation} was asked for")
        _log(enabled)
        return enabled
    except Exception as error:
        # The program did not ask for a change, and must not fail for it.
        log(Event(GENERATE, SKIPPED, reason=f"tritune fails ({error})"))
        warnings.warn(f"generate runs as without tritune: {error}", stacklevel=5)
        return Enabled()
