"""How every benchmark here measures: results checked first, candidates timed in turns, medians.

In each round every candidate runs once, so that a busy moment of the machine hits all of them
alike. A time is the wall-clock time of one whole call from Python. Everything is run once before
any clock starts, so compiling and the first touch of memory are never part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from examples.attention import error_and_limit

import tritune
import tritune.cpu.features

#: Fewer rounds than this make no median.
LEAST_ROUNDS = 5

#: What a call does in a second, by its name in JSON: how people write it.
RATES = {"gflop_per_second": "GFLOP/s", "gb_per_second": "GB/s"}


@dataclass(frozen=True)
class Timing:
    """The wall-clock seconds of one call, over all rounds."""

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))


def interleaved(
    candidates: Mapping[str, Callable[[], object]], budget_seconds: float
) -> dict[str, Timing]:
    """Time the candidates in turns until the budget is spent, five rounds at the least."""
    for run in candidates.values():
        run()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    stop = time.perf_counter() + budget_seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < stop:
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: Timing.of(times) for name, times in samples.items()}


def compare(
    ours: Mapping[str, Callable[[], object]],
    by_torch: Callable[[], object],
    budget_seconds: float,
    work: Mapping[str, float],
) -> dict[str, Any]:
    """Time our configs beside torch: each config, torch, and the fastest config against torch.

    `work` is that of one call under its name in RATES; each timing then says how much of it was
    done in a second. A `ratio` is our speed over torch's: above 1, ours is the faster.
    """
    timings = interleaved({**ours, "torch": by_torch}, budget_seconds)
    reference = timings.pop("torch")

    def row(timing: Timing) -> dict[str, Any]:
        done = {name: amount / timing.median_seconds for name, amount in work.items()}
        ratio = reference.median_seconds / timing.median_seconds
        return {**asdict(timing), **done, "ratio": ratio}

    rows = {name: row(timing) for name, timing in timings.items()}
    best = max(rows, key=lambda name: rows[name]["ratio"])
    return {"configs": rows, "torch": row(reference), "best": best, "ratio": rows[best]["ratio"]}


def require_accurate(
    name: str, out: torch.Tensor, by_torch: torch.Tensor, reference: torch.Tensor
) -> None:
    """End the program if `out` is further from the float64 `reference` than torch's own allows."""
    error, limit = error_and_limit(out, by_torch, reference)
    # Not `error > limit`: a NaN must fail too.
    if not error <= limit:
        raise SystemExit(f"{name} is wrong: its largest error is {error:.2e}, allowed {limit:.2e}")


def environment() -> dict[str, Any]:
    """What the numbers were measured on and with."""
    cpu = tritune.cpu.features.host()
    return {
        "cpu": cpu.name,
        "vector_bits": cpu.vector_bits,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "tritune": tritune.__version__,
    }


def arguments(doc: str, seconds: float) -> argparse.ArgumentParser:
    """A parser with what every benchmark accepts; `doc` is the benchmark's docstring."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help="how long to measure each comparison (default: %(default)g)",
    )
    return parser


def at_least_one(text: str) -> int:
    """The type of an argument that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def report(result: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> None:
    """Print the result for a program, or, with its environment first, for a person."""
    result = {**result, "environment": environment()}
    if as_json:
        print(json.dumps(result))
        return
    with_what = ", ".join(f"{name} {value}" for name, value in result["environment"].items())
    print(with_what)
    show(result)


def show_comparison(title: str, comparison: dict[str, Any]) -> None:
    """Print what `compare` found as a table, and its best line."""
    rates = [name for name in RATES if name in comparison["torch"]]
    rows = [
        (
            name,
            f"{row['median_seconds'] * 1e3:.3f}",
            f"{row['fastest_seconds'] * 1e3:.3f}",
            *(f"{row[rate]:.1f}" for rate in rates),
            f"{row['ratio']:.2f}",
        )
        for name, row in {**comparison["configs"], "torch": comparison["torch"]}.items()
    ]
    rounds = comparison["torch"]["rounds"]
    print(f"\n{title}, {rounds} rounds")
    print(
        table(("", "median ms", "fastest ms", *(RATES[rate] for rate in rates), "of torch"), rows)
    )
    print(f"best: {comparison['best']}, {comparison['ratio']:.0%} of torch's speed")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text in columns: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        name, *numbers = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("   ".join((name, *numbers)).rstrip())
    return "\n".join(lines)
