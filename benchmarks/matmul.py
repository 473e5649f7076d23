"""A square matmul in plain Triton on this CPU, against torch's own in the same run.

The kernel is examples/matmul.py, in several tile sizes; torch's is torch.mm. Both write into the
same matrix, which exists already. Every element is compared with float64 first. In each round every
candidate runs once; the table shows the median time of a call. The ratio is torch's median over
ours: 1 is torch's speed.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from examples.attention import DTYPES
from examples.matmul import matmul

import tritune.cpu
from benchmarks import timing

TILES = ((64, 64, 64), (64, 128, 64), (128, 128, 64), (64, 64, 32))
Tile = tuple[int, int, int]


def tile(text: str) -> Tile:
    try:
        m, n, k = (timing.at_least_one(part) for part in text.split("x"))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tile such as 64x64x32") from None
    if any(block & (block - 1) for block in (m, n, k)):
        raise argparse.ArgumentTypeError(f"{text!r}: the sides of a tile must be powers of two")
    return m, n, k


def allowed_error(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far each element of a @ b may be from the exact one when it is summed in fp32.

    Not a multiple of torch's own error: torch sums in blocks, the kernel's source one product after
    the other. The rounding errors of such a sum grow with the square root of its length.
    """
    rounding = torch.finfo(torch.float32).eps * math.sqrt(a.shape[1])
    summing = rounding * (a.double().abs() @ b.double().abs())
    # Rounding the sum to the dtype of the result.
    return summing + torch.finfo(a.dtype).eps * (a.double() @ b.double()).abs()


def measure(size: int, dtype: str, tiles: list[Tile], seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(DTYPES[dtype]) for _ in range(2))
    out = torch.empty_like(a)
    candidates = {
        "x".join(map(str, tile)): lambda tile=tile: matmul(a, b, out=out, tile=tile)
        for tile in tiles
    }

    exact, allowed = a.double() @ b.double(), allowed_error(a, b)
    for name, run in candidates.items():
        out.fill_(float("nan"))
        run()
        if not ((out - exact).abs() <= allowed).all():
            raise SystemExit(f"the matmul with tile {name} is wrong")
    del exact, allowed

    work = {"gflop_per_second": 2 * size**3 / 1e9}
    comparison = timing.compare(candidates, lambda: torch.mm(a, b, out=out), seconds, work)
    return {"benchmark": "matmul", "size": size, "dtype": dtype, **comparison}


def show(result: dict[str, Any]) -> None:
    timing.show_comparison(f"matmul of {result['size']}^3, {result['dtype']}", result)


def main() -> None:
    parser = timing.arguments(__doc__, seconds=20)
    parser.add_argument(
        "--size", type=timing.at_least_one, default=2048, help="default: %(default)s"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="default: %(default)s")
    parser.add_argument(
        "--tiles",
        type=tile,
        nargs="+",
        default=TILES,
        metavar="MxNxK",
        help=f"default: {' '.join('x'.join(map(str, t)) for t in TILES)}",
    )
    args = parser.parse_args()
    tritune.cpu.enable()
    result = measure(args.size, args.dtype, args.tiles, args.seconds)
    timing.report(result, args.json, show)


if __name__ == "__main__":
    main()
