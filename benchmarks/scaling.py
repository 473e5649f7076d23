"""Does cost grow as the work does? Attention's time against tokens and against context.

Prefill: one causal sequence of n tokens, whose work is the pairs of a query and a key that it sees.
Decode: one token with a context of n keys, whose work is reading them. Sizes are half an octave
apart, so that most are no multiple of any tile. All sizes take turns, the largest first, so that
none finds the caches as a much larger one has left them; a time is the median of the rounds. A
*step* is the growth of the time from one size to the next over that of the work: 1 where the cost
grows as the work does, less where what a call costs in any case still counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

import tritune
from benchmarks import timing

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WIDTH, HEIGHT = 64, 16
KV_HEADS, HEAD = 8, 128


def sizes(first: int, last: int) -> list[int]:
    """From the first to the last, each about 1.41 times the one before."""
    count = round(2 * math.log2(last / first))
    return [*(round(first * 2 ** (n / 2)) for n in range(count)), last]


def prefill(tokens: int, heads: int, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    q = torch.randn(1, heads, tokens, HEAD).to(dtype)
    k, v = (torch.randn(1, max(1, heads // 4), tokens, HEAD).to(dtype) for _ in range(2))
    return lambda: tritune.attention(q, k, v, causal=True)


def decode(context: int, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    q = torch.randn(1, 4 * KV_HEADS, 1, HEAD).to(dtype)
    k, v = (torch.randn(1, KV_HEADS, context, HEAD).to(dtype) for _ in range(2))
    return lambda: tritune.attention(q, k, v)


def measure(
    work: Mapping[int, float], make: Callable[[int], Callable[[], object]], seconds: float
) -> dict[str, Any]:
    """The time of each size, what a unit of work costs, and the growth between neighbours."""
    timings = timing.interleaved({str(n): make(n) for n in sorted(work, reverse=True)}, seconds)
    times = {size: timings[str(size)].median_seconds for size in work}
    rows, before = [], None
    for size, seconds_of_size in times.items():
        row = {
            "size": size,
            "milliseconds": 1e3 * seconds_of_size,
            "nanoseconds_per_unit": 1e9 * seconds_of_size / work[size],
            "step": None,
        }
        if before is not None:
            row["step"] = (seconds_of_size / times[before]) / (work[size] / work[before])
        rows.append(row)
        before = size
    return {
        "rows": rows,
        "largest_step": max(row["step"] or 0.0 for row in rows),
        "rounds": next(iter(timings.values())).rounds,
    }


def plot(rows: Sequence[Mapping[str, float]]) -> str:
    """Time against size, both in logarithms."""
    across = [math.log2(row["size"]) for row in rows]
    up = [math.log10(row["milliseconds"]) for row in rows]
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y in zip(across, up, strict=True):
        column = round((x - across[0]) / ((across[-1] - across[0]) or 1.0) * (WIDTH - 1))
        line = round((max(up) - y) / ((max(up) - min(up)) or 1.0) * (HEIGHT - 1))
        grid[line][column] = "o"
    high, low = f"{10 ** max(up):.3g} ms", f"{10 ** min(up):.3g} ms"
    margin = max(len(high), len(low))
    labels = [high, *[""] * (HEIGHT - 2), low]
    lines = [
        f"{label:>{margin}} |{''.join(cells).rstrip()}"
        for label, cells in zip(labels, grid, strict=True)
    ]
    first, last = (str(int(rows[place]["size"])) for place in (0, -1))
    axis = " " * margin + " +" + "-" * WIDTH
    return "\n".join([*lines, axis, f"{' ' * margin}  {first}{last:>{WIDTH - len(first)}}"])


def show(result: dict[str, Any]) -> None:
    for name, (title, unit) in {
        "prefill": ("prefill: time against tokens", "ns per pair and head"),
        "decode": ("decode: time against context", "ns per key and head"),
    }.items():
        found = result[name]
        rows = [
            (
                str(row["size"]),
                f"{row['milliseconds']:.3f}",
                f"{row['nanoseconds_per_unit']:.3f}",
                "" if row["step"] is None else f"{row['step']:.2f}",
            )
            for row in found["rows"]
        ]
        print(f"\n{title}, {result['dtype']}, {found['rounds']} rounds\n")
        print(plot(found["rows"]))
        print(timing.table(("", "median ms", unit, "step"), rows))
        print(f"largest step: {found['largest_step']:.2f}")


def main() -> None:
    parser = timing.arguments(__doc__ or "", seconds=20.0)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--first", type=timing.at_least_one, default=128)
    parser.add_argument("--last", type=timing.at_least_one, default=32768)
    parser.add_argument(
        "--heads", type=timing.at_least_one, default=4, help="query heads of the prefill"
    )
    options = parser.parse_args()
    if options.last <= options.first:
        parser.error("--last must be more than --first")
    if options.heads > 4 and options.heads % 4:
        parser.error("--heads must be at most 4, or a multiple of 4")
    dtype, among = DTYPES[options.dtype], sizes(options.first, options.last)
    heads = options.heads
    result = {
        "dtype": options.dtype,
        "decode": measure(
            {n: float(n * KV_HEADS) for n in among}, lambda n: decode(n, dtype), options.seconds
        ),
        "prefill": measure(
            {n: n * (n + 1) / 2 * heads for n in among},
            lambda n: prefill(n, heads, dtype),
            options.seconds,
        ),
    }
    timing.report(result, options.json, show)


if __name__ == "__main__":
    main()
