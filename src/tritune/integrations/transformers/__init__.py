"""Hugging Face transformers: importing this makes `attn_implementation="tritune"` known to it."""

from __future__ import annotations

from tritune.integrations.dependencies import TRANSFORMERS, importing

with importing(TRANSFORMERS):
    from transformers import AttentionInterface, AttentionMaskInterface

    from tritune.integrations.transformers.attention import NAME, attend
    from tritune.integrations.transformers.mask import make_mask
    from tritune.integrations.transformers.model_support import check_models
    from tritune.integrations.transformers.paged import allow_continuous_batching

__all__ = ["NAME", "register"]


def register() -> None:
    """Make the attention and its mask known to transformers; more than once does no harm."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)
    allow_continuous_batching(NAME)
    check_models(NAME)


register()
