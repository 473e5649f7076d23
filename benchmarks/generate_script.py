"""The program that benchmarks/generate.py runs: a plain use of transformers, nothing of tritune.

It makes a Llama with random weights and a prompt, calls `model.generate` once for every line that
it reads, and prints as JSON how long each new token took and which tokens they were. Every call
starts from the same keys and values of the prompt: numbers at random, unless --prefill has them
computed, which takes minutes. What a token costs does not depend on them.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM


class Clock:
    """A streamer: `generate` calls `put` with the prompt first, then with every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, tokens: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=8192, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="new tokens of a call")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--prefill", action="store_true", help="compute the keys and values of the prompt"
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    heads = options.hidden // 64
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=options.hidden,
        intermediate_size=options.hidden * 11 // 4,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=2 * options.context,
    )
    dtype = getattr(torch, options.dtype)
    model = LlamaForCausalLM(config).to(dtype).eval()
    prompt = torch.randint(config.vocab_size, (1, options.context))
    past = computed(model, prompt) if options.prefill else made_up(config, prompt, dtype)
    report(parameters=sum(parameter.numel() for parameter in model.parameters()))
    for _ in sys.stdin:
        clock = Clock()
        tokens = model.generate(
            prompt,
            past_key_values=copy.deepcopy(past),
            max_new_tokens=options.tokens,
            min_new_tokens=options.tokens,
            do_sample=False,
            streamer=clock,
        )
        # The first token also pays for whatever is made once for a call.
        steps = [b - a for a, b in zip(clock.times[1:], clock.times[2:], strict=False)]
        report(seconds=steps, tokens=tokens[0, options.context :].tolist())


def computed(model: Any, prompt: torch.Tensor) -> DynamicCache:
    """The keys and values of the prompt but for its last token."""
    with torch.no_grad():
        past = DynamicCache(config=model.config)
        model(prompt[:, :-1], past_key_values=past, logits_to_keep=1)
    return past


def made_up(config: LlamaConfig, prompt: torch.Tensor, dtype: torch.dtype) -> DynamicCache:
    """The same at random."""
    past = DynamicCache(config=config)
    shape = (1, config.num_key_value_heads, prompt.shape[1] - 1, config.head_dim)
    for layer in range(config.num_hidden_layers):
        past.update(torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), layer)
    return past


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
