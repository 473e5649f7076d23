"""What changed between two checkouts: import, first launch, fast path, compiling, problems of ops.

Each part runs in processes of its own, one checkout and the other in turns, so that a busy moment
of the machine hits both. Both run the same configs, whatever either would choose. A figure is the
median over the rounds, a ratio the median over the rounds of new / base: above 1, the new one is
slower. `lowest` and `highest` are the ratios of single rounds. A figure is worse if its ratio
exceeds the tolerance in three rounds or more and none says otherwise; the exit status is then 1.

Calls that are timed follow each other on the same inputs, in caches that are as warm as they get.
Both checkouts keep Triton's cache from round to round, except where compiling is measured.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.timing import at_least_one, environment, table

from tritune.errors import TrituneError
from tritune.targets.device import target_of
from tritune.workloads.catalog import workload_named
from tritune.workloads.problems.suites import suite

ROOT = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).with_name("checkout_process.py")
PARTS = ("start", "fast path", "compile", "suite")
#: Small problems of the kernels that take longest to compile.
COMPILED = {
    "attention": "heads=2 group=1 queries=128 keys=128 head_size=64 dtype=float32 causal=true",
    "paged_attention": "kv_heads=2 queries=1 keys=128 head_size=64 dtype=bfloat16",
    "linear": "rows=64 n=128 k=128 dtype=float32",
}


def unpacked(name, folder):
    """A checkout's folder: the path itself, or that of a git revision, written to a new folder."""
    if (Path(name) / "src/tritune").is_dir():
        return Path(name).resolve()
    command = ["git", "-C", str(ROOT), "archive", name, "src"]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        sys.exit(f"{name} is neither a checkout nor a revision: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder)


def entry(op, problem):
    """A problem of an op as plain data, with the config that both checkouts are to run."""
    workload, target = workload_named(op), target_of(torch.device("cpu"))
    kernel, usual = workload.kernel, workload.problem().fields()
    unusual = (f"{k}={v}" for k, v in problem.fields().items() if v != usual[k])
    return {
        "name": " ".join([op, *unusual]),
        "op": op,
        "problem": problem.fields(),
        "config": kernel.default(problem, target.family, target.arch).to_json(),
    }


def run(tree, part, task, cache):
    """Run a part once in a new process: its figures, in seconds."""
    with tempfile.TemporaryDirectory() as empty:
        variables = {
            "PYTHONPATH": str(tree / "src"),
            "TRITON_CACHE_DIR": empty if part == "compile" else cache,
            "TRITUNE_STORE": f"{empty}/none.sqlite",
            "TRITUNE_MODE": "default",
        }
        done = subprocess.run(
            [sys.executable, str(CHILD)],
            input=json.dumps({**task, "part": part, "tree": str(tree)}),
            env={**os.environ, **variables},
            cwd=empty,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        sys.exit(f"{part!r} fails in {tree}:\n{done.stderr}")
    return json.loads(done.stdout)


def measure(trees, parts, task, rounds, starts, folder):
    """Every figure of both checkouts, a number for each round; the first round is not counted."""
    found = defaultdict(lambda: ([], []))
    for number in range(rounds + 1):
        for part in parts:
            turns = (0, 1) * (starts if part == "start" else 1)
            # Who begins has the machine as the last part left it.
            results = {0: [], 1: []}
            for turn in turns if number % 2 else reversed(turns):
                results[turn].append(run(trees[turn], part, task, f"{folder}/cache-{turn}"))
            for name in results[0][0] if number else ():
                for turn, each in results.items():
                    found[name][turn].append(statistics.median(result[name] for result in each))
        print(f"round {number} of {rounds}", file=sys.stderr)
    return found


def compared(base, new, tolerance):
    """One figure of the two checkouts beside each other."""
    ratios = [after / before for before, after in zip(base, new, strict=True)]
    ratio, lowest = statistics.median(ratios), min(ratios)
    return {
        "base_seconds": statistics.median(base),
        "new_seconds": statistics.median(new),
        "ratio": ratio,
        "lowest": lowest,
        "highest": max(ratios),
        "worse": len(ratios) > 2 and ratio > 1 + tolerance and lowest > 1,
    }


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", metavar="BASE", help="a git revision, or a checkout's folder")
    parser.add_argument("new", metavar="NEW", nargs="?", default=str(ROOT), help="this checkout")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="only these")
    parser.add_argument("--suite", help="the suite's problems, as tritune bench has them")
    parser.add_argument(
        "--problem", nargs=2, action="append", default=[], metavar=("OP", "FIELDS"),
        help='a problem to time, such as: attention "queries=1 keys=4096"',
    )  # fmt: skip
    parser.add_argument("--rounds", type=at_least_one, default=7, help="turns of each checkout")
    parser.add_argument("--starts", type=at_least_one, default=3, help="starts in a round")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure of a turn")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of a ratio above 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def main():
    options = arguments()
    try:
        chosen = [(op, workload_named(op).parse(text)) for op, text in options.problem]
        chosen += suite(options.suite) if options.suite else []
    except TrituneError as error:
        sys.exit(str(error))
    task = {
        "seconds": options.seconds,
        "problems": [entry(op, problem) for op, problem in chosen],
        "compile": [
            {**entry(op, workload_named(op).parse(text)), "name": op}
            for op, text in COMPILED.items()
        ],
    }
    parts = [part for part in options.parts if part != "suite" or chosen]
    with tempfile.TemporaryDirectory() as folder:
        trees = [unpacked(name, f"{folder}/{place}") for place, name in
                 (("base", options.base), ("new", options.new))]  # fmt: skip
        found = measure(trees, parts, task, options.rounds, options.starts, folder)
    figures = {name: compared(*each, options.tolerance) for name, each in found.items()}
    if options.json:
        print(json.dumps({"figures": figures, "environment": environment()}))
    else:
        print(f"{options.base} and {options.new}, {options.rounds} rounds, milliseconds")
        rows = [
            (name, *(f"{each[key] * 1e3:.4f}" for key in ("base_seconds", "new_seconds")),
             *(f"{each[key]:.3f}" for key in ("ratio", "lowest", "highest")),
             "worse" if each["worse"] else "")
            for name, each in figures.items()
        ]  # fmt: skip
        print(table(("", "base", "new", "ratio", "lowest", "highest", ""), rows))
    sys.exit(int(any(each["worse"] for each in figures.values())))


if __name__ == "__main__":
    main()
