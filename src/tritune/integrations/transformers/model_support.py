"""The models that tritune's attention supports: those that look their attention up in transformers'
AttentionInterface. Models with attention of their own would misread its masks, or never call it.

transformers checks whether a model supports "sdpa" and "flash_attention_2"; it does not check that
for a name that was registered from outside.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any

from transformers import PreTrainedModel

from tritune.integrations.errors import IntegrationError

#: How a model's file defines attention, and how it finds what is registered.
_DEFINES = re.compile(r"^class \w*Attention\w*\(nn\.Module\):", re.MULTILINE)
_LOOKUP = "ALL_ATTENTION_FUNCTIONS"
#: A table of attention classes of the file's own, which does not have names from outside; or blocks
#: of keys that are passed to the attention, whose size only the file knows.
_OWN = re.compile(r"_CLASSES\[\s*(self\.)?config\._attn_implementation\s*\]|\bblock_indices=")

#: By class of config, whether all models that were built with tritune's attention read no mask but
#: through it.
_through_interface: dict[type, bool] = {}


def why_unsupported(model_class: type) -> str | None:
    """Return why models of a class cannot use the attention; None where they can."""
    for each in model_class.__mro__[: model_class.__mro__.index(PreTrainedModel)]:
        if _has_own_attention(each.__module__):
            usable = '"sdpa"' if model_class._supports_sdpa else '"eager"'  # type: ignore[attr-defined]
            return (
                f"{model_class.__name__} has attention of its own, which transformers' "
                f"AttentionInterface does not reach: use attn_implementation={usable}"
            )
    return None


def looks_up_attention(module: object) -> bool:
    """Return whether a module is attention that calls what is registered."""
    module_class: Any = type(module)
    return _looks_up(module_class)


@functools.cache
def _looks_up(module_class: type) -> bool:
    if issubclass(module_class, PreTrainedModel):
        return False
    methods = [method for each in module_class.__mro__ for method in vars(each).values()]
    return any(
        _LOOKUP in getattr(getattr(inspect.unwrap(method), "__code__", None), "co_names", ())
        for method in methods
        if callable(method)
    )


def takes_short_masks(config: object) -> bool:
    """Return whether nothing but the attention reads the masks that are made for a config.

    False for a config into which the attention was written, without a call of transformers'.
    """
    return _through_interface.get(type(config), False)


def check_models(name: str) -> None:
    """Have transformers call `why_unsupported` before a model gets the attention `name`."""
    original = PreTrainedModel.get_correct_attn_implementation
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def get_correct_attn_implementation(
        self: Any, requested_attention: str | None, *args: Any, **kwargs: Any
    ) -> Any:
        if requested_attention == name:
            reason = why_unsupported(type(self))
            if reason is not None:
                raise IntegrationError(f'attn_implementation="{name}" is refused: {reason}')
            _note(type(self), type(self.config))
        return original(self, requested_attention, *args, **kwargs)

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation


def _note(model_class: Any, config_class: type) -> None:
    # Masks for flash attention are None or (batch, keys): a model that supports it reads no others.
    short = model_class._supports_flash_attn and (
        model_class._supports_sdpa or model_class._supports_attention_backend
    )
    _through_interface[config_class] = short and _through_interface.get(config_class, True)


@functools.cache
def _has_own_attention(module: str) -> bool:
    """Return whether a file defines attention that does not call what is registered."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        # A class of an interactive session: what it inherits from decides.
        return False
    if _LOOKUP not in source:
        return _DEFINES.search(source) is not None
    return _OWN.search(source) is not None
