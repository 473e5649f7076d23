"""A small model with random weights, a tokenizer and a LoRA adapter, as vLLM reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, RANK = 256, 128, 256, 2, 4, 2, 8
#: Shorter than some of the prompts.
WINDOW = 16


def prompts() -> list[list[int]]:
    """Token ids: prompts of one page (128 tokens) and of two, longer and shorter than a window."""
    return [[(7 * i * j + 3) % 250 + 3 for i in range(n)] for j, n in enumerate([5, 1, 40, 140])]


def save_model(folder: Path) -> None:
    """Write folder/model and folder/adapter."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        sliding_window=WINDOW,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        # Large, so that no two words are nearly as likely as each other.
        initializer_range=0.2,
    )
    transformers.MistralForCausalLM(config).save_pretrained(folder / "model")
    _tokenizer().save_pretrained(folder / "model")
    _save_adapter(folder / "adapter")


def _tokenizer() -> Any:
    import tokenizers
    import transformers

    words = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {f"w{i}": i for i in range(3, WORDS)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    )


def _save_adapter(folder: Path) -> None:
    import safetensors.torch
    import torch

    layers = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.v_proj": (HIDDEN * KV_HEADS // HEADS, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    weights = {}
    for layer in range(LAYERS):
        for name, (outputs, inputs) in layers.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{path}.lora_A.weight"] = 0.2 * torch.randn(RANK, inputs)
            weights[f"{path}.lora_B.weight"] = 0.2 * torch.randn(outputs, RANK)
    folder.mkdir()
    safetensors.torch.save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": [name.rpartition(".")[2] for name in layers],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
