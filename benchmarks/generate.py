"""How fast an unchanged transformers program decodes under `tritune run`, against plain Python.

benchmarks/generate_script.py runs in two processes at once, one started by `python`, one by
`tritune run`. They take turns: one generates while the other waits. A time is that of one new
token, the first of each call left out. The greedy tokens of both are compared. Arguments that are
not listed here are the script's: --context, --tokens, --layers, --hidden, --dtype, --prefill.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks.timing import environment  # noqa: E402

SCRIPT = Path(__file__).with_name("generate_script.py")
STARTS = {"python": (), "tritune run": ("-m", "tritune.cli.main", "run")}


class Program:
    """The script in a process of its own, which generates when told to."""

    def __init__(self, start: tuple[str, ...], arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *start, str(SCRIPT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._answer()

    def generate(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the program ended with status {self.process.wait()}")
        return json.loads(line)


def measure(arguments: list[str], seconds: float, least: int = 2) -> dict[str, Any]:
    """Turns until the time is spent; the first of each program is for what is done once."""
    programs = {name: Program(start, arguments) for name, start in STARTS.items()}
    tokens = {name: program.generate()["tokens"] for name, program in programs.items()}
    samples: dict[str, list[float]] = {name: [] for name in programs}
    stop, turns = time.perf_counter() + seconds, 0
    while turns < least or time.perf_counter() < stop:
        for name, program in programs.items():
            samples[name] += program.generate()["seconds"]
        turns += 1
    parameters = programs["python"].facts["parameters"]
    for program in programs.values():
        program.end()
    plain, ours = (statistics.median(samples[name]) for name in STARTS)
    return {
        "parameters": parameters,
        "turns": turns,
        "milliseconds_per_token": {name: 1e3 * statistics.median(s) for name, s in samples.items()},
        "ratio": plain / ours,
        "same_tokens": _same(*tokens.values()),
        "new_tokens": len(tokens["python"]),
    }


def _same(one: list[int], other: list[int]) -> int:
    """How many tokens agree, up to the first that does not."""
    return next(
        (i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="time for all turns")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, arguments = parser.parse_known_args()
    result = {"environment": environment(), **measure(arguments, options.seconds)}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"Llama, {result['parameters'] / 1e6:.0f} M parameters, {' '.join(arguments)}")
    for name, milliseconds in result["milliseconds_per_token"].items():
        print(f"{name:12} {milliseconds:8.1f} ms per token")
    print(f"decodes {result['ratio']:.2f} times as fast under tritune run")
    print(f"greedy tokens: the first {result['same_tokens']} of {result['new_tokens']} agree")


if __name__ == "__main__":
    main()
