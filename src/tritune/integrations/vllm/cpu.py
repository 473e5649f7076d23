"""The backend on a CPU, where vLLM has one only and checks nothing of it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.logger import init_logger

from tritune.errors import ArgumentError
from tritune.integrations.vllm.backend import (
    TrituneAttentionBackend,
    TrituneAttentionImpl,
    TrituneMetadataBuilder,
)

# Only loggers below vLLM's own have its handlers.
_logger = init_logger(f"vllm.plugins.{__name__}")


class TrituneCPUAttentionImpl(TrituneAttentionImpl):
    """One layer's attention; a layer that it cannot compute is refused when the model is made."""

    def __init__(self, *layer: Any, **options: Any) -> None:
        super().__init__(*layer, **options)
        reasons = TrituneAttentionBackend.validate_configuration(
            head_size=self.head_size, dtype=torch.get_default_dtype(),
            kv_cache_dtype=self.kv_cache_dtype, block_size=None, use_mla=False,
            has_sink=self.sinks is not None, use_sparse=False, use_mm_prefix=False,
            use_per_head_quant_scales=False, device_capability=None, attn_type=self.attn_type,
            has_sliding_window=self.sliding_window is not None,
        )  # fmt: skip
        if reasons:
            raise ArgumentError(
                f"tritune cannot compute attention with a head size of {self.head_size} and a KV "
                f"cache of {self.kv_cache_dtype}: {', '.join(reasons)}; set VLLM_PLUGINS= to leave "
                "attention to vLLM"
            )


class TrituneCPUMetadataBuilder(TrituneMetadataBuilder):
    """Logs once what installing tritune has changed."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        changed = "tritune computes attention on this CPU (VLLM_PLUGINS= leaves it to vLLM)"
        if vllm_config.use_v2_model_runner:
            changed += (
                ", and Triton runs on it, for which vLLM uses Model Runner V2 "
                "(VLLM_USE_V2_MODEL_RUNNER=0 keeps V1)"
            )
        _logger.info_once(changed, scope="global")


class TrituneCPUAttentionBackend(TrituneAttentionBackend):
    """Replaces vLLM's CPU backend, under its name."""

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @staticmethod
    def get_impl_cls() -> type[TrituneCPUAttentionImpl]:
        return TrituneCPUAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TrituneCPUMetadataBuilder]:
        return TrituneCPUMetadataBuilder
