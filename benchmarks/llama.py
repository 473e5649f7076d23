"""examples/llama.py beside the same model in Hugging Face transformers with `sdpa`.

Both have the same random weights and take turns in one process. Decoding: one token with a context
that both caches hold already, filled with random values. Prefill: a prompt into an empty cache, of
which the last token's logits are wanted. And both decode greedily from the same prompt in fp32,
where the tokens must be the same. `tritune tune` before it lets tritune use what it finds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from examples.llama import DTYPES, SIZES, Cache, Model, decoding, forward, prefilling, random_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks import timing

THETA = 10000.0


def in_transformers(model: Model, longest: int) -> Any:
    """The same model, with the same weights, as transformers has it."""
    sizes = model.sizes
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=longest,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        theirs = LlamaForCausalLM(config)
    theirs = theirs.to_empty(device="cpu").to(model.embedding.dtype)
    theirs.load_state_dict(state(model))
    # What is computed rather than loaded has to be computed again.
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)
    return theirs.eval()


def state(model: Model) -> dict[str, torch.Tensor]:
    """The weights under the names that transformers has for them."""
    sizes = model.sizes
    named = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm,
        "lm_head.weight": model.head,
    }
    parts = [each * sizes.head for each in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
    for number, layer in enumerate(model.layers):
        q, k, v = layer.qkv.split(parts)
        gate, up = layer.gate_up.chunk(2)
        of_layer = {
            "input_layernorm": layer.attention_norm,
            "post_attention_layernorm": layer.mlp_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.output,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        for name, weight in of_layer.items():
            named[f"model.layers.{number}.{name}.weight"] = weight
    return named


def their_prefilling(theirs: Any, prompt: torch.Tensor) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        cache = DynamicCache(config=theirs.config)
        return theirs(prompt[None], past_key_values=cache, logits_to_keep=1).logits

    return run


def their_decoding(theirs: Any, token: torch.Tensor, context: int) -> Callable[[], torch.Tensor]:
    config = theirs.config
    cache = DynamicCache(config=config)
    shape = (1, config.num_key_value_heads, context - 1, config.head_dim)
    for layer in range(config.num_hidden_layers):
        keys, values = (torch.randn(shape, dtype=theirs.dtype) for _ in range(2))
        cache.update(keys, values, layer)

    def run() -> torch.Tensor:
        logits = theirs(token[None], past_key_values=cache).logits
        cache.crop(-1)
        return logits

    return run


def greedy(model: Model, prompt: torch.Tensor, count: int) -> list[int]:
    cache, newest, found = Cache(model, len(prompt) + count), prompt, []
    for _ in range(count):
        newest = forward(model, newest, cache, last_only=True).argmax(-1)
        found.append(int(newest))
    return found


def their_greedy(theirs: Any, prompt: torch.Tensor, count: int) -> list[int]:
    tokens = theirs.generate(
        prompt[None], max_new_tokens=count, min_new_tokens=count, do_sample=False
    )
    return tokens[0, len(prompt) :].tolist()


def same_tokens(size: str, prompt: int, count: int) -> dict[str, Any]:
    """How many greedy tokens agree in fp32, up to the first that does not."""
    model = random_model(SIZES[size], prompt + count, torch.float32, torch.device("cpu"))
    tokens = prompt_of(model, prompt)
    ours = greedy(model, tokens, count)
    theirs = their_greedy(in_transformers(model, prompt + count), tokens, count)
    agree = next((n for n in range(count) if ours[n] != theirs[n]), count)
    return {"prompt": prompt, "tokens": count, "agree": agree}


def prompt_of(model: Model, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(model.sizes.vocabulary, (count,), generator=generator)


def speeds(size: str, dtype: str, prefill: int, context: int, seconds: float) -> dict[str, Any]:
    longest = max(prefill, context)
    model = random_model(SIZES[size], longest, DTYPES[dtype], torch.device("cpu"))
    theirs, prompt = in_transformers(model, longest), prompt_of(model, prefill)
    pairs: dict[str, Sequence[Callable[[], torch.Tensor]]] = {
        "decode": (
            decoding(model, prompt[:1], context),
            their_decoding(theirs, prompt[:1], context),
        ),
        "prefill": (prefilling(model, prompt), their_prefilling(theirs, prompt)),
    }
    found: dict[str, Any] = {"parameters": model.parameters}
    for name, (ours, other) in pairs.items():
        timings = timing.interleaved({"tritune": ours, "transformers": other}, seconds)
        medians = {each: timings[each].median_seconds for each in timings}
        found[name] = {
            "seconds": medians,
            "rounds": timings["tritune"].rounds,
            "ratio": medians["transformers"] / medians["tritune"],
        }
    return found


def show(result: dict[str, Any]) -> None:
    print(f"{result['parameters'] / 1e6:.0f} million parameters, {result['dtype']}")
    per_run = {"decode": 1, "prefill": result["prefill_tokens"]}
    titles = {
        "decode": f"decoding with a context of {result['context']}",
        "prefill": f"prefill of {result['prefill_tokens']} tokens",
    }
    for name, title in titles.items():
        rows = [
            (each, f"{seconds * 1e3:.1f}", f"{per_run[name] / seconds:.1f}")
            for each, seconds in result[name]["seconds"].items()
        ]
        print(f"\n{title}, {result[name]['rounds']} rounds")
        print(timing.table(("", "median ms", "tokens/s"), rows))
        print(f"{result[name]['ratio']:.2f} times the speed of transformers")
    same = result["greedy"]
    print(f"\ngreedy tokens in fp32: the first {same['agree']} of {same['tokens']} agree")


def main() -> None:
    parser = timing.arguments(__doc__ or "", seconds=30.0)
    parser.add_argument("--size", choices=SIZES, default="0.3b")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--prefill", type=timing.at_least_one, default=2048)
    parser.add_argument("--context", type=timing.at_least_one, default=8192)
    parser.add_argument("--tokens", type=timing.at_least_one, default=16, help="greedy tokens")
    options = parser.parse_args()
    with torch.no_grad():
        result = {
            "dtype": options.dtype,
            "prefill_tokens": options.prefill,
            "context": options.context,
            "greedy": same_tokens(options.size, 64, options.tokens),
            **speeds(
                options.size, options.dtype, options.prefill, options.context, options.seconds
            ),
        }
    timing.report(result, options.json, show)


if __name__ == "__main__":
    main()
