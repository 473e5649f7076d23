"""The attention layers of a built model: tritune's attention while no gradients are needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from tritune.integrations.enabled import Enabled
from tritune.integrations.transformers.attention import NAME
from tritune.integrations.transformers.model_support import looks_up_attention, why_unsupported

_OWN = "{} does not go through transformers' AttentionInterface"
_UNKNOWN = "{} has a config that belongs to no model of transformers"


def use_attention(enabled: Enabled, model: torch.nn.Module) -> None:
    """Let the attention layers of a model call tritune's attention, where they can.

    In training, and where gradients are needed, they call what they called before.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    reasons = {id(part.config): reason for part in parts if (reason := why_unsupported(type(part)))}
    usable = [part for part in parts if id(part.config) not in reasons]
    patched = 0
    for layer in _attention_layers(model):
        config = getattr(layer, "config", None)
        if not looks_up_attention(layer):
            enabled.leave("attention", _OWN.format(type(layer).__name__))
        elif any(config is part.config for part in usable):
            patched += 1
        else:
            enabled.leave(
                "attention", reasons.get(id(config), _UNKNOWN.format(type(layer).__name__))
            )
    if not patched:
        return
    before = {id(part.config): part.config._attn_implementation for part in usable}
    for part in usable:
        part.get_correct_attn_implementation(NAME)
    undo: list[Callable[[], object]] = []
    for part in parts:
        inside = {id(each.config): each.config for each in part.modules() if each in usable}
        switch = _AttentionSwitch(model, [(config, before[key]) for key, config in inside.items()])
        switch.set(True)
        hook = part.register_forward_pre_hook(switch.before_forward, with_kwargs=True)
        undo += [hook.remove, functools.partial(switch.set, False)]
    enabled.add("attention", lambda: [each() for each in undo], patched)


def _attention_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers that look their attention up, and the outermost others named attention."""
    if looks_up_attention(module):
        return [module]
    inside = [layer for child in module.children() for layer in _attention_layers(child)]
    named = "Attention" in type(module).__name__
    if named and not any(looks_up_attention(layer) for layer in inside):
        return [module]
    return inside


class _AttentionSwitch:
    """Switches a part of a model between tritune's attention and what it used before."""

    def __init__(self, model: torch.nn.Module, configs: list[tuple[Any, str | None]]) -> None:
        self.model = model
        #: The configs of all that is in the part, with the attention that they named before.
        self.configs = configs

    def before_forward(self, part: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Switch a part and all that is in it; called before each of its forwards.

        What holds for the whole model decides: a part gets masks that another may have made.
        """
        self.set(not self.model.training and not self._needs_gradient(args, kwargs))

    def set(self, ours: bool) -> None:
        for config, before in self.configs:
            now, then = (NAME, before) if ours else (before, NAME)
            # An attention that the program has set since is left.
            if config._attn_implementation == then:
                config._attn_implementation_internal = now

    def _needs_gradient(self, args: Any, kwargs: dict[str, Any]) -> bool:
        if not torch.is_grad_enabled():
            return False
        inputs = (*args, *kwargs.values())
        return any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs) or any(
            parameter.requires_grad for parameter in self.model.parameters()
        )
