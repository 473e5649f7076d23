"""Tiny models of the families that are served: their real config classes, random weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

import tritune.integrations.transformers  # noqa: F401  (registers the attention)

TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 12}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, **WINDOW}
#: By family: the beginning of the names of its classes, and what its config has of its own.
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "mistral": ("MistralConfig", "MistralForCausalLM", WINDOW),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", GEMMA),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", {}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {"head_dim": 16, **WINDOW, **EXPERTS}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", EXPERTS),
}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", {}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {"local_attention": 16, "layer_types": ["full_attention", "sliding_attention"]},
    ),
}


def make(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model in evaluation mode."""
    config_name, model_name, own = {**DECODERS, **ENCODERS}[family]
    config = getattr(transformers, config_name)(**{**TINY, **own, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, model_name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Weights of norms, biases and sinks begin as zeros or ones, which hides mistakes; what
            # begins small makes attention look at all keys alike.
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.15))
    return model.to(dtype)


def exact_logits(model: Any, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The logits of the tokens that are seen, by `eager` in a wider dtype.

    Each sequence is computed alone, so that it cannot matter how padding is treated.
    """
    wider = torch.float64 if model.dtype == torch.float32 else torch.float32
    alone = copy.deepcopy(model).to(wider)
    if hasattr(model.config, "num_local_experts"):
        alone.set_experts_implementation("eager")  # the default knows no float64
    positions = torch.arange(ids.shape[1])
    return torch.cat(
        [
            logits(alone, "eager", row[None, mask], position_ids=positions[None, mask])[0]
            for row, mask in zip(ids, seen.bool(), strict=True)
        ]
    )


def prompt(tokens: int, batch: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, TINY["vocab_size"], (batch, tokens), generator=generator)


def padding(ids: torch.Tensor, side: str, tokens: int = 9) -> torch.Tensor:
    """A mask that takes some tokens away from the last sequence."""
    mask = torch.ones_like(ids)
    if side == "left":
        mask[-1, :tokens] = 0
    elif side == "right":
        mask[-1, -tokens:] = 0
    return mask


def logits(model: Any, attention: str, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    model.set_attn_implementation(attention)
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=ids, **inputs).logits
    return result


def greedy(model: Any, attention: str, ids: torch.Tensor, **inputs: Any) -> list[list[int]]:
    """The tokens that `generate` adds."""
    model.set_attn_implementation(attention)
    tokens = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, **inputs)[
        :, ids.shape[1] :
    ]
    result: list[list[int]] = tokens.tolist()
    return result
