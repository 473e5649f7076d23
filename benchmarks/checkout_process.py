"""One turn of `compare_checkouts.py`, in the checkout that PYTHONPATH names: a task in, times out.

The task is JSON on standard input, the times are JSON on standard output. Names that every checkout
must have: those of `tritune.__all__`, `tritune.policy.forced`, and of
`tritune.workloads.catalog.workload_named` what `exactly`, `inputs` and `run` do.
"""

import itertools
import json
import statistics
import sys
import time
from pathlib import Path


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median_of(call, seconds, least):
    """The median of calls for so many seconds, in seconds; the first is not counted."""
    call()
    samples, stop = [], time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < stop:
        samples.append(timed(call))
    return statistics.median(samples)


def start(task):
    """Import tritune and its first op, and launch a small kernel that Triton's cache has."""

    def import_op():
        import tritune

        return tritune.rms_norm

    imported = {"import tritune": timed(lambda: __import__("tritune"))}
    imported["import tritune, torch and triton"] = timed(import_op)
    import torch

    x, weight = torch.ones(4, 64), torch.ones(64)
    return {**imported, "first launch": timed(lambda: import_op()(x, weight))}


def fast_path(task):
    """Call ops again with tensors so small that the way there is most of the time."""
    import torch

    import tritune

    x, weight, scale = torch.ones(4, 64), torch.ones(64, 64), torch.ones(64)
    q = torch.ones(1, 1, 4, 16)
    calls = {
        "rms_norm": lambda: tritune.rms_norm(x, scale),
        "linear": lambda: tritune.linear(x, weight),
        "attention": lambda: tritune.attention(q, q, q),
    }
    found = {}
    for name, call in calls.items():
        # One call is too short for the clock.
        many = lambda call=call: [call() for _ in itertools.repeat(None, 100)]  # noqa: E731
        found[f"fast path: {name}"] = median_of(many, task["seconds"], 5) / 100
    return found


def prepared(entry):
    """What calls an op for a problem with a config; everything but the op is done here."""
    from tritune import Config
    from tritune.policy import forced
    from tritune.workloads.catalog import workload_named

    workload = workload_named(entry["op"])
    inputs = workload.inputs(workload.exactly(entry["problem"]))
    config = Config.from_json(entry["config"])

    def call():
        with forced(workload.kernel, config):
            workload.run(inputs)

    return call


def compile_once(task):
    """Call ops for the first time with an empty cache of Triton's: that is, compile."""
    start(task)
    return {f"compile: {each['name']}": timed(prepared(each)) for each in task["compile"]}


def suite(task):
    return {
        each["name"]: median_of(prepared(each), task["seconds"], 3) for each in task["problems"]
    }


PARTS = {"start": start, "fast path": fast_path, "compile": compile_once, "suite": suite}


def main():
    task = json.load(sys.stdin)
    found = PARTS[task["part"]](task)
    import tritune

    tree = Path(task["tree"]).resolve()
    if tree not in Path(tritune.__file__).resolve().parents:
        sys.exit(f"{tritune.__file__} was imported, not the tritune of {tree}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
