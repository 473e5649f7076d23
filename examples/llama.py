"""A Llama-architecture model whose attention, norms, rope, activation and linear layers are
tritune's.

Weights are random; --size says how many (0.3 billion unless told otherwise). A prompt is prefilled
into a paged KV cache and tokens are decoded one by one; the logits of every step are compared with
the same model in plain torch. Then the speed: prefill, and decoding with a long context, for which
the cache is filled with random values.

    python examples/llama.py
    python examples/llama.py --size 1b --dtype fp32
    python examples/llama.py --size tiny --prefill 0 --context 0

The same file runs on a GPU with --device cuda. `benchmarks/llama.py` measures it beside
Hugging Face transformers.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F

import tritune

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    #: Tokens of a page of the KV cache.
    page: int = 16

    @property
    def head(self) -> int:
        return self.hidden // self.heads


SIZES = {
    "tiny": Sizes(4, 512, 8, 2, 1408, 2048),
    "0.3b": Sizes(20, 1024, 16, 4, 2816, 32000),
    "1b": Sizes(16, 2048, 32, 8, 8192, 32000),
}


@dataclass
class Layer:
    """The weights of one layer; linear weights are (out, in)."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass
class Model:
    sizes: Sizes
    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def parameters(self) -> int:
        tensors = [self.embedding, self.norm, self.head]
        tensors += [weight for layer in self.layers for weight in vars(layer).values()]
        return sum(t.numel() for t in tensors)


def random_model(
    sizes: Sizes, tokens: int, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Model:
    generator = torch.Generator().manual_seed(seed)

    def weight(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values.to(device, dtype)

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=dtype, device=device)

    q_and_kv = (sizes.heads + 2 * sizes.kv_heads) * sizes.head
    layers = [
        Layer(
            attention_norm=ones(sizes.hidden),
            qkv=weight(q_and_kv, sizes.hidden),
            output=weight(sizes.hidden, sizes.heads * sizes.head),
            mlp_norm=ones(sizes.hidden),
            gate_up=weight(2 * sizes.intermediate, sizes.hidden),
            down=weight(sizes.hidden, sizes.intermediate),
        )
        for _ in range(sizes.layers)
    ]
    frequencies = 1.0 / 10000 ** (torch.arange(0, sizes.head, 2) / sizes.head)
    angles = torch.arange(tokens)[:, None] * torch.cat([frequencies, frequencies])[None, :]
    return Model(
        sizes,
        embedding=weight(sizes.vocabulary, sizes.hidden),
        layers=layers,
        norm=ones(sizes.hidden),
        head=weight(sizes.vocabulary, sizes.hidden),
        cos=angles.cos().to(device, dtype),
        sin=angles.sin().to(device, dtype),
    )


class Cache:
    """Keys and values of every layer in pages; the pages of the one sequence are handed out in a
    shuffled order.
    """

    def __init__(self, model: Model, tokens: int) -> None:
        sizes, like = model.sizes, model.embedding
        pages = -(-tokens // sizes.page)
        shape = (sizes.layers, pages, sizes.page, sizes.kv_heads, sizes.head)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
        self.table = order.to(like.device, torch.int32)[None]
        self.length = 0

    def make_up(self, length: int) -> None:
        """Random keys and values for so many tokens: decoding costs the same with any."""
        self.keys.normal_()
        self.values.normal_()
        self.length = length

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the keys and values of the newest tokens into their slots."""
        page = self.keys.shape[2]
        positions = torch.arange(self.length, self.length + len(keys), device=keys.device)
        pages = self.table[0, positions // page].long()
        self.keys[layer, pages, positions % page] = keys
        self.values[layer, pages, positions % page] = values


def forward(
    model: Model, tokens: torch.Tensor, cache: Cache, last_only: bool = False
) -> torch.Tensor:
    """Logits of the newest tokens, or of the last one, which are added to the cache: prefill and
    decode alike.
    """
    sizes, count = model.sizes, len(tokens)
    device = tokens.device
    positions = torch.arange(cache.length, cache.length + count, device=device)
    lengths = torch.tensor([cache.length + count], dtype=torch.int32, device=device)
    starts = torch.tensor([0, count], dtype=torch.int32, device=device)
    residual = model.embedding[tokens]
    normed = tritune.rms_norm(residual, model.layers[0].attention_norm)
    for number, layer in enumerate(model.layers):
        qkv = tritune.linear(normed, layer.qkv).view(count, -1, sizes.head)
        q, k, v = qkv.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        q, k = tritune.rope(q, k, model.cos, model.sin, positions=positions)
        cache.append(number, k, v)
        seen = tritune.paged_attention(
            q, cache.keys[number], cache.values[number], cache.table, lengths, starts
        )
        attended = tritune.linear(seen.view(count, -1), layer.output)
        normed, residual = tritune.add_rms_norm(attended, residual, layer.mlp_norm)
        gate, up = tritune.linear(normed, layer.gate_up).chunk(2, dim=-1)
        fed = tritune.linear(tritune.silu_mul(gate, up), layer.down)
        following = (
            model.layers[number + 1].attention_norm if number + 1 < sizes.layers else model.norm
        )
        normed, residual = tritune.add_rms_norm(fed, residual, following)
    cache.length += count
    return tritune.linear(normed[-1:] if last_only else normed, model.head)


def plain_forward(model: Model, tokens: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same model over the whole sequence at once, in plain torch and any dtype."""
    sizes, count = model.sizes, len(tokens)

    def cast(t: torch.Tensor) -> torch.Tensor:
        return t.to(dtype)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), cast(weight), 1e-6)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        cos, sin = (cast(t[:count])[:, None] for t in (model.cos, model.sin))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    x = cast(model.embedding)[tokens]
    for layer in model.layers:
        qkv = F.linear(norm(x, layer.attention_norm), cast(layer.qkv)).view(count, -1, sizes.head)
        q, k, v = qkv.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], dim=1)
        q, k, v = (t.transpose(0, 1)[None] for t in (rotated(q), rotated(k), v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(seen[0].transpose(0, 1).reshape(count, -1), cast(layer.output))
        gate, up = F.linear(norm(x, layer.mlp_norm), cast(layer.gate_up)).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, cast(layer.down))
    return F.linear(norm(x, model.norm), cast(model.head))


def largest_error_and_limit(
    logits: torch.Tensor, plain: torch.Tensor, reference: torch.Tensor
) -> tuple[float, float]:
    """Our largest error, and the largest allowed: twice plain torch's own plus the dtype's
    rounding.
    """
    rounded = reference.to(logits.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item()
    plain_error = (plain - reference).abs().max().item()
    return (logits - reference).abs().max().item(), 2 * plain_error + 2 * rounding


def check(model: Model, prompt: torch.Tensor, generate: int) -> bool:
    """Prefill, decode greedily, and compare all logits with plain torch's; prints what it finds."""
    dtype = model.embedding.dtype
    tokens, cache = prompt, Cache(model, len(prompt) + generate)
    newest, logits = tokens, []
    for step in range(generate + 1):
        logits.append(forward(model, newest, cache))
        newest = logits[-1][-1:].argmax(-1)
        if step < generate:
            tokens = torch.cat([tokens, newest])
    exact = torch.float64 if dtype == torch.float32 else torch.float32
    reference = plain_forward(model, tokens, exact)
    plain = plain_forward(model, tokens, dtype)
    error, limit = largest_error_and_limit(torch.cat(logits), plain, reference)
    verdict = "the same as plain torch's" if error <= limit else "WRONG"
    print(
        f"logits of {len(tokens)} tokens: largest error {error:.2e}, allowed {limit:.2e}: {verdict}"
    )
    return error <= limit


def prefilling(model: Model, prompt: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call that prefills the prompt and gives the logits of its last token."""
    cache = Cache(model, len(prompt))

    def run() -> torch.Tensor:
        cache.length = 0
        return forward(model, prompt, cache, last_only=True)

    return run


def decoding(model: Model, token: torch.Tensor, context: int) -> Callable[[], torch.Tensor]:
    """A call that decodes one token which sees a context of so many, itself among them."""
    cache = Cache(model, context)
    cache.make_up(context - 1)

    def run() -> torch.Tensor:
        cache.length = context - 1
        return forward(model, token, cache)

    return run


def median_seconds(run: Callable[[], torch.Tensor], times: int) -> float:
    """The median of so many calls, after one that compiles."""
    samples = []
    for _ in range(times + 1):
        start = time.perf_counter()
        # Reading a number waits for a device that works on its own.
        run().flatten()[0].item()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}, allowed: 1 or more")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="0.3b", help="parameters of the model")
    for field in fields(Sizes):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=positive, help="instead of what --size says")
    for flag, default, what in (
        ("--prompt", 64, "tokens of the prompt to check"),
        ("--generate", 8, "tokens to decode in that check"),
        ("--prefill", 2048, "tokens to time a prefill of"),
        ("--context", 8192, "tokens to time decoding with"),
    ):
        parser.add_argument(flag, type=positive, default=default, help=what)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    given = {field.name: getattr(args, field.name) for field in fields(Sizes)}
    sizes = replace(SIZES[args.size], **{k: value for k, value in given.items() if value})
    if sizes.hidden % sizes.heads or sizes.heads % sizes.kv_heads:
        parser.error("--hidden must be a multiple of --heads, and --heads of --kv-heads")
    longest = max(args.prompt + args.generate, args.prefill, args.context)
    device = torch.device(args.device)
    model = random_model(sizes, longest, DTYPES[args.dtype], device)
    print(f"llama on {device}: {model.parameters / 1e6:.1f} million parameters, {args.dtype}")
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(sizes.vocabulary, (longest,), generator=generator).to(device)
    with torch.no_grad():
        right = check(model, tokens[: args.prompt], args.generate)
        seconds = median_seconds(prefilling(model, tokens[: args.prefill]), 3)
        print(
            f"prefill of {args.prefill} tokens: {seconds * 1e3:.1f} ms, "
            f"{args.prefill / seconds:.1f} tokens a second"
        )
        seconds = median_seconds(decoding(model, tokens[:1], args.context), 15)
        print(
            f"decoding with a context of {args.context}: {seconds * 1e3:.2f} ms a token, "
            f"{1 / seconds:.1f} tokens a second"
        )
    if not right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
