"""One process of benchmarks/attention.py: attention in a fresh process, step by step, as JSON.

With TRITON_INTERPRET=1 it is how long Triton's interpreter takes; otherwise, what the first call
costs with the cache in TRITON_CACHE_DIR as it is found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def import_seconds() -> dict[str, float]:
    """Importing what attention needs, in this order: each without what came before it."""
    names = (
        "torch",
        "triton",
        # Triton's first launch in a process imports this, on any device.
        "triton.experimental.gluon",
        "llvmlite.binding",
        "examples.attention",
    )
    return {name: seconds_of(lambda name=name: importlib.import_module(name)) for name in names}


def interpret(
    shape: tuple[int, int, int], blocks: tuple[int, int], limit_seconds: float
) -> dict[str, Any]:
    """One head first; then all of them, unless that would take too long."""
    import torch
    from examples.attention import attention

    q, k, v = inputs(shape)
    heads = shape[0]
    one_head = seconds_of(lambda: attention(q[:1], k[:1], v[:1], blocks=blocks))
    measured_heads = heads if one_head * heads <= limit_seconds else 1
    first = tuple(tensor[:measured_heads] for tensor in (q, k, v))
    out = torch.empty(0)

    def run() -> None:
        nonlocal out
        out = attention(*first, blocks=blocks)

    seconds = seconds_of(run)
    require_correct("in the interpreter", out, *first)
    return {
        # Every head is the same work, so the others cost as much as those that ran.
        "seconds": seconds * heads / measured_heads,
        "measured_heads": measured_heads,
        "scaled": measured_heads != heads,
    }


def first_call(shape: tuple[int, int, int], imports: dict[str, float]) -> dict[str, Any]:
    """The first call, and its parts as Triton's own hooks tell them."""
    from examples.attention import attention
    from triton import knobs
    from triton.runtime.cache import triton_key

    import tritune.cpu

    device_seconds = seconds_of(tritune.cpu.enable)
    # Triton hashes its own installation once per process, for the key of every cache entry.
    key_seconds = seconds_of(triton_key)
    q, k, v = inputs(shape)
    compilations: list[dict[str, Any]] = []
    loading: dict[str, float] = {}

    def on_compile(*, times: Any, cache_hit: bool, **_: object) -> None:
        stages = {"make_ir": times.ir_initialization, **dict(times.lowering_stages)}
        compilations.append(
            {
                "cache_hit": cache_hit,
                "compile_seconds": times.total / 1e6,
                # A hit has no stages: all its time is in the first field.
                "stage_seconds": {}
                if cache_hit
                else {name: us / 1e6 for name, us in stages.items()},
            }
        )

    knobs.compilation.listener = on_compile
    knobs.runtime.kernel_load_start_hook.add(lambda *_: loading.update(start=time.perf_counter()))
    knobs.runtime.kernel_load_end_hook.add(lambda *_: loading.update(end=time.perf_counter()))
    # The clock starts with torch's threads running, as they are in a program at work.
    (q @ k.transpose(1, 2)).sum()
    call_seconds = seconds_of(lambda: attention(q, k, v))
    run_seconds = statistics.median(seconds_of(lambda: attention(q, k, v)) for _ in range(11))
    require_correct("compiled", attention(q, k, v), q, k, v)
    (compilation,) = compilations
    load_binary_seconds = loading["end"] - loading["start"]
    return {
        **compilation,
        "load_binary_seconds": load_binary_seconds,
        "compile_and_load_seconds": compilation["compile_seconds"] + load_binary_seconds,
        "first_call_seconds": call_seconds,
        "run_seconds": run_seconds,
        "first_call_without_run_seconds": call_seconds - run_seconds,
        "not_counted_seconds": {
            **{f"import {name}": seconds for name, seconds in imports.items()},
            "making the device": device_seconds,
            "Triton's hash of itself": key_seconds,
        },
    }


def inputs(shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    return q, k, v


def require_correct(name: str, out: Any, q: Any, k: Any, v: Any) -> None:
    from benchmarks.timing import require_accurate
    from examples.attention import float64_attention, torch_attention

    reference = float64_attention(q, k, v)
    require_accurate(f"attention {name}", out, torch_attention(q, k, v), reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("heads", type=int)
    parser.add_argument("tokens", type=int)
    parser.add_argument("head_size", type=int)
    parser.add_argument("--blocks", type=int, nargs=2, default=(64, 32))
    parser.add_argument("--interpreter-limit", type=float, default=120.0)
    args = parser.parse_args()
    shape = (args.heads, args.tokens, args.head_size)
    imports = import_seconds()
    if os.environ.get("TRITON_INTERPRET") == "1":
        result = interpret(shape, tuple(args.blocks), args.interpreter_limit)
    else:
        result = first_call(shape, imports)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
