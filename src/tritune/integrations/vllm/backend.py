"""The classes of an attention backend of vLLM 0.32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import CrossAttentionSpec

from tritune.integrations.vllm import NAME
from tritune.integrations.vllm.cache import write_cache
from tritune.integrations.vllm.encoder import encoder_attention
from tritune.ops.call.attention_checks import LARGEST_HEAD
from tritune.ops.paged_attention import paged_attention

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
_FLOATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_QUANTIZED = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@dataclass
class TrituneMetadata:
    """Describes a batch, for all layers of a group."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    #: For all requests, or for each.
    causal: bool | torch.Tensor


class TrituneMetadataBuilder(AttentionMetadataBuilder[TrituneMetadata]):
    """Plans nothing for a batch: the policy chooses the config of each launch."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._crosses = isinstance(kv_cache_spec, CrossAttentionSpec)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> TrituneMetadata:
        common = common_attn_metadata
        return TrituneMetadata(
            common.num_actual_tokens,
            common.max_query_len,
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
            causal=False if self._crosses else common.causal,
        )


class TrituneAttentionImpl(AttentionImpl[TrituneMetadata]):
    """One layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or None
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TrituneMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the attention of `query` (tokens, heads, head size) into `output`, which may be
        longer, and return it.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("TRITUNE does not quantize its output")
        if attn_metadata is None:
            return output.fill_(0)  # vLLM finds out how much memory it needs
        tokens = attn_metadata.num_actual_tokens
        out = output[:tokens].view(tokens, self.num_heads, -1)
        query = query[:tokens].view(tokens, self.num_heads, self.head_size)
        if self.attn_type in _ENCODERS:
            self._encode(query, key[:tokens], value[:tokens], attn_metadata, out)
        elif isinstance(attn_metadata.causal, torch.Tensor):
            self._mixed(layer, query, kv_cache, attn_metadata, out)
        else:
            self._attend(layer, query, kv_cache, attn_metadata, attn_metadata.causal, out)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write the new tokens' keys and values into their slots."""
        if self.attn_type in _ENCODERS:
            return
        for new, cache, scale in zip(
            (key, value), self._split(kv_cache), self._scales(layer), strict=True
        ):
            heads = new.view(new.shape[0], self.num_kv_heads, -1)
            write_cache(heads, cache, slot_mapping, scale)

    def _attend(
        self,
        layer: Any,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: TrituneMetadata,
        causal: bool,
        out: torch.Tensor,
    ) -> None:
        if not causal and self.sliding_window is not None:
            raise NotImplementedError("TRITUNE has no sliding window that looks ahead")
        keys, values = self._split(kv_cache)
        k_scale, v_scale = self._scales(layer)
        if self.alibi_slopes is not None:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        paged_attention(
            query, keys, values, metadata.block_table, metadata.seq_lens, metadata.query_start_loc,
            causal=causal, scale=self.scale, window=self.sliding_window,
            softcap=self.logits_soft_cap, alibi_slopes=self.alibi_slopes, sinks=self.sinks,
            k_scale=k_scale, v_scale=v_scale, out=out,
        )  # fmt: skip

    def _mixed(
        self,
        layer: Any,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: TrituneMetadata,
        out: torch.Tensor,
    ) -> None:
        """Compute causal and non-causal attention, and take for each request what it needs."""
        assert isinstance(metadata.causal, torch.Tensor)
        ahead = torch.empty_like(out)
        self._attend(layer, query, kv_cache, metadata, True, out)
        self._attend(layer, query, kv_cache, metadata, False, ahead)
        lengths = metadata.query_start_loc.diff()
        non_causal = ~metadata.causal[: len(lengths)].bool()
        takes_ahead = torch.repeat_interleave(non_causal, lengths, output_size=len(query))
        torch.where(takes_ahead[:, None, None], ahead, out, out=out)

    def _encode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: TrituneMetadata,
        out: torch.Tensor,
    ) -> None:
        if self.alibi_slopes is not None:
            raise NotImplementedError("TRITUNE has no ALiBi for encoders")
        keys, values = (each.view(len(each), self.num_kv_heads, -1) for each in (key, value))
        attended = encoder_attention(
            query, keys, values, metadata.query_start_loc, metadata.max_query_len,
            self.scale, self.sliding_window, self.logits_soft_cap,
        )  # fmt: skip
        out.copy_(attended)

    def _split(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, (pages, page size, heads, size), of a cache that is (pages,
        heads, page size, 2 * size), wherever its strides put them.
        """
        kind = _QUANTIZED.get(self.kv_cache_dtype)
        if kind is not None:
            kv_cache = kv_cache.view(kind)
        packed = kv_cache.transpose(1, 2)
        return packed[..., : self.head_size], packed[..., self.head_size :]

    def _scales(self, layer: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self.kv_cache_dtype not in _QUANTIZED:
            return None, None
        return layer._k_scale.reshape(-1), layer._v_scale.reshape(-1)


class TrituneAttentionBackend(AttentionBackend):
    """The backend that vLLM selects with `--attention-backend TRITUNE`."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", *_FLOATS, *_QUANTIZED]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[TrituneAttentionImpl]:
        return TrituneAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TrituneMetadataBuilder]:
        return TrituneMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [16, 32, 64, 128, 256]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 1 <= head_size <= LARGEST_HEAD

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in tuple(AttentionType)

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *others: Any
    ) -> str | None:
        if kv_cache_dtype in _FLOATS and _FLOATS[kv_cache_dtype] != dtype:
            return f"a {kv_cache_dtype} KV cache with a {dtype} model not supported"
        return None

    @classmethod
    def validate_configuration(cls, *args: Any, **model: Any) -> list[str]:
        reasons: list[str] = super().validate_configuration(*args, **model)
        if model.get("use_non_causal") and model.get("has_sliding_window"):
            reasons.append("non-causal attention with a sliding window not supported")
        return reasons
