"""`tritune.linear` for one row of x in bf16: weights of 8 and 4 bits beside bf16, in one run.

There are several square weights of each kind, as a model has layers, and every call takes the next
one: together they are larger than the caches, so weights come from memory, as they do when a model
decodes. Results are compared with the dequantized weight in float64 before anything is timed. In
each round every kind runs once; the table shows the median time of a call. The ratio is the median
of bf16 over that of the kind: above 1, the kind is the faster.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

import tritune
import tritune.cpu
from benchmarks import timing

KINDS = {"bf16": 0, "int8": 8, "int4": 4}


def weights_of(bits: int, size: int, layers: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    weights = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(layers))
    return [tritune.quantize_weight(weight, bits=bits) if bits else weight for weight in weights]


def in_turn(name: str, x: torch.Tensor, weights: list[Any]) -> Callable[[], object]:
    """A call with the next of the weights, the first result being checked."""
    weight = weights[0]
    plain = weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float64)
    exact = x.double() @ plain.double().T
    timing.require_accurate(name, tritune.linear(x, weight), x @ plain.to(x.dtype).T, exact)
    following = itertools.cycle(weights)
    return lambda: tritune.linear(x, next(following))


def measure(size: int, layers: int, seconds: float) -> dict[str, Any]:
    x = torch.randn(1, size, generator=torch.Generator().manual_seed(1)).bfloat16()
    candidates = {
        name: in_turn(name, x, weights_of(bits, size, layers)) for name, bits in KINDS.items()
    }
    timings = timing.interleaved(candidates, seconds)
    slowest = timings["bf16"].median_seconds
    kinds = {
        name: {**asdict(one), "ratio": slowest / one.median_seconds}
        for name, one in timings.items()
    }
    return {"benchmark": "quantized", "size": size, "layers": layers, "kinds": kinds}


def show(result: dict[str, Any]) -> None:
    rows = [
        (name, f"{row['median_seconds'] * 1e3:.3f}", f"{row['ratio']:.2f}")
        for name, row in result["kinds"].items()
    ]
    rounds = result["kinds"]["bf16"]["rounds"]
    size, layers = result["size"], result["layers"]
    print(f"\n{layers} weights of {size} x {size}, {rounds} rounds")
    print(timing.table(("", "median ms", "of bf16"), rows))


def main() -> None:
    parser = timing.arguments(__doc__, seconds=5)
    for name, default, what in (("--size", 4096, "of the weights"), ("--layers", 16, "of each")):
        parser.add_argument(
            name,
            type=timing.at_least_one,
            default=default,
            help=f"{what} (default: %(default)s)",
        )
    args = parser.parse_args()
    if args.size % 128:
        parser.error(f"--size {args.size}: weights are quantized in groups of 128; give a multiple")
    tritune.cpu.enable()
    timing.report(measure(args.size, args.layers, args.seconds), args.json, show)


if __name__ == "__main__":
    main()
