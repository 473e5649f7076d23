"""Flash attention on this CPU: its speed against Triton's interpreter, and its compile time.

The kernel is examples/attention.py: forward, fp32, not causal. Every result is compared with
float64.

Speed: compiled (with each of --blocks) and torch's own take turns in this process, median of the
rounds. The interpreter runs the same kernel with the same blocks in a process of its own, once,
after a warm-up of one head. Where all heads would take it longer than --interpreter-limit, one head
is timed and multiplied by the number of heads; the output then says so.

Compiling and loading: pairs of fresh processes, the first with an empty cache, the second with the
cache that the first left; median over the pairs. Not counted, but shown: imports, making the
device, and Triton's hash of its own installation (once per process, on any device). The run itself
is the median of the calls after the first. Compiling is triton.compile as its own listener times
it: all stages, or the hit in the cache. Linking is Triton's load_binary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from examples.attention import attention, float64_attention, torch_attention

import tritune.cpu
from benchmarks import timing

PROCESS = Path(__file__).with_name("attention_process.py")
Shape = tuple[int, int, int]
Blocks = tuple[int, int]


def in_process(shape: Shape, *options: str, **environment: str) -> dict[str, Any]:
    """What attention_process.py finds in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, str(PROCESS), *map(str, shape), *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**inherited, **environment},
    )
    if finished.returncode:
        raise SystemExit(f"{PROCESS.name} failed, see above")
    return json.loads(finished.stdout)


def measure_speed(
    shape: Shape, blocks: list[Blocks], seconds: float, interpreter_limit: float
) -> dict[str, Any]:
    """Compiled against the interpreter and torch, for every pair of block sizes."""
    # First, while this process has no threads of its own that wait for work.
    limit = ("--interpreter-limit", str(interpreter_limit))
    interpreter = {
        pair: in_process(shape, "--blocks", *map(str, pair), *limit, TRITON_INTERPRET="1")
        for pair in blocks
    }
    tritune.cpu.enable()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    by_torch, exact = torch_attention(q, k, v), float64_attention(q, k, v)
    candidates = {"torch": lambda: torch_attention(q, k, v)}
    for pair in blocks:
        candidates[name_of(pair)] = lambda pair=pair: attention(q, k, v, blocks=pair)
        timing.require_accurate("attention", candidates[name_of(pair)](), by_torch, exact)
    timings = timing.interleaved(candidates, seconds)
    configs = {}
    for pair in blocks:
        compiled = timings[name_of(pair)].median_seconds
        factor = interpreter[pair]["seconds"] / compiled
        configs[name_of(pair)] = {
            "compiled_seconds": compiled,
            "interpreter": interpreter[pair],
            "factor": factor,
        }
    return {
        "torch_seconds": timings["torch"].median_seconds,
        "rounds": timings["torch"].rounds,
        "configs": configs,
    }


def name_of(pair: Blocks) -> str:
    return f"{pair[0]}x{pair[1]}"


def block_sizes(text: str) -> Blocks:
    try:
        queries, keys = map(int, text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 64x32") from None
    return queries, keys


def measure_first_call(shape: Shape, pairs: int) -> dict[str, Any]:
    """Medians over pairs of processes: an empty cache, then a warm one."""
    cold, warm = [], []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(in_process(shape, TRITON_CACHE_DIR=cache))
            warm.append(in_process(shape, TRITON_CACHE_DIR=cache))
    if any(one["cache_hit"] for one in cold):
        raise SystemExit("a process found its kernel in a cache that was empty")
    if not all(one["cache_hit"] for one in warm):
        raise SystemExit(
            "a process did not find the kernel that the one before it compiled: "
            "was tritune's own code changed in between?"
        )
    return {"pairs": pairs, "empty_cache": medians(cold), "warm_cache": medians(warm)}


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number in results of one structure."""
    merged: dict[str, Any] = {}
    for name, value in results[0].items():
        values = [result[name] for result in results]
        if isinstance(value, dict):
            merged[name] = medians(values)
        elif isinstance(value, float):
            merged[name] = statistics.median(values)
    return merged


def show(result: dict[str, Any]) -> None:
    heads, tokens, head_size = (result[name] for name in ("heads", "tokens", "head_size"))
    print(
        f"\nflash attention forward of {heads} heads, {tokens} tokens, head size {head_size}, fp32"
    )
    if "speed" in result:
        show_speed(result["speed"], heads)
    if "first_call" in result:
        show_first_call(result["first_call"])


def show_speed(speed: dict[str, Any], heads: int) -> None:
    rows = []
    for name, config in speed["configs"].items():
        times = config["compiled_seconds"], config["interpreter"]["seconds"]
        against_torch = speed["torch_seconds"] / times[0]
        rows.append(
            (name, *map(milliseconds, times), f"{config['factor']:.0f}", f"{against_torch:.2f}")
        )
    print(f"\nspeed, median of {speed['rounds']} rounds, the interpreter once")
    titles = ("blocks", "compiled ms", "interpreter ms", "x interpreter", "x torch")
    print(timing.table(titles, rows))
    for name, config in speed["configs"].items():
        if config["interpreter"]["scaled"]:
            measured = config["interpreter"]["measured_heads"]
            print(f"{name}: the interpreter's time is SCALED: {measured} of {heads} heads ran")


def show_first_call(first_call: dict[str, Any]) -> None:
    cold, warm = first_call["empty_cache"], first_call["warm_cache"]
    names = {
        "the first call, all of it": "first_call_seconds",
        "  without the run itself": "first_call_without_run_seconds",
        "  triton.compile": "compile_seconds",
        "  linking": "load_binary_seconds",
        "  triton.compile and linking": "compile_and_load_seconds",
    }
    rows = [
        (text, milliseconds(cold[name]), milliseconds(warm[name])) for text, name in names.items()
    ]
    rows += [
        (f"    stage {name}", milliseconds(value), "")
        for name, value in cold["stage_seconds"].items()
    ]
    rows += [
        (
            f"not counted: {name}",
            milliseconds(value),
            milliseconds(warm["not_counted_seconds"][name]),
        )
        for name, value in cold["not_counted_seconds"].items()
    ]
    print(f"\na fresh process, median of {first_call['pairs']}, in ms")
    print(timing.table(("", "empty cache", "warm cache"), rows))
    print(
        f"one config compiles in {cold['compile_seconds']:.3f} s, "
        f"and loads from the cache in {warm['compile_and_load_seconds'] * 1e3:.1f} ms"
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def main() -> None:
    parser = timing.arguments(__doc__, seconds=5)
    parser.add_argument("--heads", type=timing.at_least_one, default=8, help="default: %(default)s")
    parser.add_argument(
        "--tokens", type=timing.at_least_one, default=512, help="default: %(default)s"
    )
    parser.add_argument(
        "--head-size", type=timing.at_least_one, default=64, help="default: %(default)s"
    )
    parser.add_argument(
        "--blocks",
        type=block_sizes,
        nargs="+",
        default=[(64, 64), (64, 32), (32, 32)],
        metavar="MxN",
        help="queries x keys of a block (default: 64x64 64x32 32x32)",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--speed", action="store_true", help="only the speed")
    only.add_argument("--compile", action="store_true", help="only compiling and loading")
    parser.add_argument(
        "--pairs",
        type=timing.at_least_one,
        default=5,
        help="pairs of processes that compile and load (default: %(default)s)",
    )
    parser.add_argument(
        "--interpreter-limit",
        type=float,
        default=120,
        metavar="SECONDS",
        help="time one head where all would take the interpreter longer (default: %(default)s)",
    )
    args = parser.parse_args()
    shape = (args.heads, args.tokens, args.head_size)
    result: dict[str, Any] = {
        "benchmark": "attention",
        "heads": args.heads,
        "tokens": args.tokens,
        "head_size": args.head_size,
    }
    if not args.speed:
        result["first_call"] = measure_first_call(shape, args.pairs)
    if not args.compile:
        result["speed"] = measure_speed(shape, args.blocks, args.seconds, args.interpreter_limit)
    timing.report(result, args.json, show)


if __name__ == "__main__":
    main()
