"""Does tuning on a busy machine store anything that a quiet one does not confirm?

Short problems, one row or one token each, are tuned into an empty store beside a process on every
core that never rests, and into another one by two runs at once. Then, with nothing else running,
each stored winner is timed beside the default config once more, in turns, by the tuner's own
measuring process. A winner is confirmed if it is no more than 5 % slower than the default, and if
the gain that the store claims is within 5 % of the gain that is measured now. Where the store keeps
the default, nothing was claimed. Ends with status 1 if a winner is not confirmed, or if the two
runs together tried a config twice.

Run it on a machine that is otherwise quiet: it makes its own load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tritune.space import Config
from tritune.store import Store
from tritune.targets.device import detect
from tritune.tuning.job import Job
from tritune.tuning.measure.client import MeasurementClient
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.tuning import job_for

DEVICE = torch.device("cpu")
PROBLEMS = (
    ("silu_mul", "rows=1"),
    ("rms_norm", "rows=1"),
    ("linear", "rows=1"),
    ("attention", "queries=1 keys=1024"),
)
#: How far from what was measured a claim may be.
TOLERANCE = 0.05
SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@dataclass(frozen=True)
class Check:
    """What a store says of one problem, and what is measured now."""

    store: str
    op: str
    problem: str
    #: Default over winner, as the store has it; None where the default was kept.
    claimed: float | None
    measured: float | None
    confirmed: bool


@contextmanager
def spinners() -> Iterator[None]:
    """A process on every core that never rests."""
    processes = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(cpu)])
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start(store: Path, op: str, problem: str, budget: float) -> subprocess.Popen[str]:
    """`tritune tune`, on its way."""
    command = [sys.executable, "-m", "tritune.cli.main", "tune", op, "--problem", problem, "--json"]
    command += ["--store", str(store), "--budget", str(budget)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def new_trials(runs: Sequence[subprocess.Popen[str]]) -> int:
    """How many configs the runs have tried, together."""
    count = 0
    for run in runs:
        out, _ = run.communicate()
        if run.returncode:
            raise SystemExit(f"tritune tune ended with status {run.returncode}")
        rows = (row for rows in json.loads(out)["ops"].values() for row in rows)
        count += sum(row["new_trials"] for row in rows)
    return count


def job_of(store: Store, op: str, problem: str) -> Job:
    workload = WORKLOADS[op]
    return job_for(workload, workload.parse(problem), DEVICE, detect(DEVICE), store)


def gain_now(job: Job, winner: Config, rounds: int) -> float:
    """How many times as fast as the default a config is, measured in turns."""
    with MeasurementClient(job.spec, default=job.default) as client:
        configs = [job.default, winner]
        for config in configs:
            failure = client.verify(config)
            if failure is not None:
                raise SystemExit(f"{config} fails: {failure.message}")
        times = client.time(configs, rounds, keep=configs)
    pairs = zip(times[job.default], times[winner], strict=True)
    ratios = [statistics.median(a) / statistics.median(b) for a, b in pairs if a and b]
    if len(ratios) < rounds / 2:
        raise SystemExit("this machine is not quiet: something disturbs the second measurement")
    return statistics.median(ratios)


def check(name: str, path: Path, rounds: int) -> list[Check]:
    """Measure again what a store claims."""
    found = []
    with Store(path) as store:
        for op, problem in PROBLEMS:
            job = job_of(store, op, problem)
            winner = store.winner(job.task)
            claimed = measured = None
            if winner is not None and winner.config != job.default:
                # A winner that nothing is claimed of is as good as the default, at least.
                claimed = winner.speedup or 1.0
                measured = gain_now(job, winner.config, rounds)
            confirmed = claimed is None or measured is None or is_confirmed(claimed, measured)
            found.append(Check(name, op, problem, claimed, measured, confirmed))
    return found


def is_confirmed(claimed: float, measured: float) -> bool:
    """Whether a winner is no slower than the default, and the claim about it is true."""
    return measured >= 1 - TOLERANCE and abs(claimed / measured - 1) <= TOLERANCE


def tune(folder: Path, budget: float) -> dict[str, int]:
    """Fill both stores; of each, how many trials were made again."""
    repeated = {}
    paths = {"beside spinners": folder / "spinners.sqlite", "two runs": folder / "two.sqlite"}
    for name, path in paths.items():
        made = 0
        for op, problem in PROBLEMS:
            if name == "two runs":
                made += new_trials([start(path, op, problem, budget) for _ in range(2)])
            else:
                with spinners():
                    made += new_trials([start(path, op, problem, budget)])
        with Store(path) as store:
            kept = sum(len(store.trials(task)) for task in store.tasks())
        repeated[name] = made - kept
    return repeated


def show(checks: Sequence[Check], repeated: dict[str, int]) -> None:
    print(f"{'store':16} {'op':10} {'problem':20} {'claimed':>8} {'measured':>9}  confirmed")
    for row in checks:
        gains = ["default" if x is None else f"{x:.2f}x" for x in (row.claimed, row.measured)]
        print(
            f"{row.store:16} {row.op:10} {row.problem:20} {gains[0]:>8} {gains[1]:>9}  "
            f"{'yes' if row.confirmed else 'NO'}"
        )
    print(f"trials made again: {', '.join(f'{n} {name}' for name, n in repeated.items())}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each problem")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the second measurement")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tritune-busy-") as name:
        folder = Path(name)
        repeated = tune(folder, options.budget)
        checks = check("beside spinners", folder / "spinners.sqlite", options.rounds)
        checks += check("two runs", folder / "two.sqlite", options.rounds)
    if options.json:
        result: dict[str, Any] = {"checks": [asdict(row) for row in checks], "repeated": repeated}
        print(json.dumps(result, indent=2))
    else:
        show(checks, repeated)
    if any(repeated.values()) or not all(row.confirmed for row in checks):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
