"""Giving a built model tritune's attention, for as long as nobody needs gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from tritune.integrations.enabled import Enabled
from tritune.integrations.transformers.attention import NAME
from tritune.integrations.transformers.served import looks_up_attention, refusal

_OWN = "{} does not go through transformers' AttentionInterface"
_UNKNOWN = "{} has a config that belongs to no model of transformers"


def use_attention(enabled: Enabled, model: torch.nn.Module) -> None:
    """Let the attention layers of a model call tritune's attention, where they can.

    In training, and where gradients are needed, they call what they called before.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    reasons = {id(part.config): reason for part in parts if (reason := refusal(type(part)))}
    usable = [part for part in parts if id(part.config) not in reasons]
    served = 0
    for layer in _attention_layers(model):
        config = getattr(layer, "config", None)
        if not looks_up_attention(layer):
            enabled.leave("attention", _OWN.format(type(layer).__name__))
        elif any(config is part.config for part in usable):
            served += 1
        else:
            enabled.leave(
                "attention", reasons.get(id(config), _UNKNOWN.format(type(layer).__name__))
            )
    if not served:
        return
    before = {id(part.config): part.config._attn_implementation for part in usable}
    for part in usable:
        part.get_correct_attn_implementation(NAME)
    undo: list[Callable[[], object]] = []
    for part in parts:
        inside = {id(each.config): each.config for each in part.modules() if each in usable}
        choice = _Choice(model, [(config, before[key]) for key, config in inside.items()])
        choice.serve(True)
        hook = part.register_forward_pre_hook(choice.choose, with_kwargs=True)
        undo += [hook.remove, functools.partial(choice.serve, False)]
    enabled.add("attention", lambda: [each() for each in undo], served)


def _attention_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that look their attention up, and the outermost others that are called so."""
    if looks_up_attention(module):
        return [module]
    inside = [layer for child in module.children() for layer in _attention_layers(child)]
    named = "Attention" in type(module).__name__
    if named and not any(looks_up_attention(layer) for layer in inside):
        return [module]
    return inside


class _Choice:
    """Which attention a part of a model uses: tritune's, or what it used before."""

    def __init__(self, model: torch.nn.Module, configs: list[tuple[Any, str | None]]) -> None:
        self.model = model
        #: The configs of all that is in the part, and what they said before.
        self.configs = configs

    def choose(self, part: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Decide for a part and all that is in it; called before each of its forwards.

        What holds for the whole model decides: a part gets masks that another may have made.
        """
        self.serve(not self.model.training and not self._needs_gradient(args, kwargs))

    def serve(self, ours: bool) -> None:
        for config, before in self.configs:
            now, then = (NAME, before) if ours else (before, NAME)
            # What somebody has set since is left.
            if config._attn_implementation == then:
                config._attn_implementation_internal = now

    def _needs_gradient(self, args: Any, kwargs: dict[str, Any]) -> bool:
        if not torch.is_grad_enabled():
            return False
        inputs = (*args, *kwargs.values())
        return any(isinstance(each, torch.Tensor) and each.requires_grad for each in inputs) or any(
            parameter.requires_grad for parameter in self.model.parameters()
        )
