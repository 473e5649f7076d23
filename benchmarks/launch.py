"""What a launch costs: a kernel that does nothing, with four arguments and a grid of one program.

Each launch is timed by itself. `total` is `kernel[(1,)](...)` as a user writes it; `runtime` is the
same launch from the point where Triton hands over to the CPU backend; `triton` is the rest.
`parallel` is a launch of as many programs as there are threads, which wakes the thread pool.
`look_up` is what an op adds: the policy's answer for a problem it has met before, asked with an
equal problem that was made anew, as every call makes one; `problem` is the making of it.
"""

import argparse
import json
import statistics
import time

import torch
import triton

import tritune.cpu
from tritune.cpu.launch import threads
from tritune.kernels.attention import KERNEL, AttentionProblem
from tritune.policy import config_for

FIELDS = {
    "batch": 4,
    "heads": 32,
    "group": 4,
    "queries": 1024,
    "keys": 1024,
    "head_size": 128,
    "value_size": 128,
    "dtype": "float16",
    "causal": True,
}


@triton.jit
def nothing(x, y, out, n):
    pass


def percentiles(call, launches):
    """(median, 90th percentile) of one call, in microseconds."""
    for _ in range(launches // 10):
        call()
    times = []
    for _ in range(launches):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    return statistics.median(times) / 1e3, times[len(times) * 9 // 10] / 1e3


def look_ups(count):
    """(median, 90th percentile) of the policy's answer to a warm problem, in microseconds."""
    device = torch.device("cpu")
    config_for(KERNEL, AttentionProblem(**FIELDS), device)
    equal = iter([AttentionProblem(**FIELDS) for _ in range(count + count // 10)])
    return percentiles(lambda: config_for(KERNEL, next(equal), device), count)


def measure(launches):
    tritune.cpu.enable()
    x, y, out = (torch.zeros(16) for _ in range(3))
    kernel = nothing[(1,)](x, y, out, 16)
    run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
    programs = threads.count()
    total = percentiles(lambda: nothing[(1,)](x, y, out, 16), launches)
    runtime = percentiles(
        lambda: run(1, 1, 1, 0, function, packed, None, None, None, x, y, out, 16), launches
    )
    parallel = percentiles(lambda: nothing[(programs,)](x, y, out, 16), launches)
    problem = percentiles(lambda: AttentionProblem(**FIELDS), launches)
    look_up = look_ups(launches)
    empty = percentiles(lambda: None, launches)
    return {
        "total": {"median_us": total[0] - empty[0], "p90_us": total[1] - empty[0]},
        "runtime": {"median_us": runtime[0] - empty[0], "p90_us": runtime[1] - empty[0]},
        "triton": {"median_us": total[0] - runtime[0]},
        "parallel": {"median_us": parallel[0] - empty[0], "p90_us": parallel[1] - empty[0]},
        "look_up": {"median_us": look_up[0] - empty[0], "p90_us": look_up[1] - empty[0]},
        "problem": {"median_us": problem[0] - empty[0], "p90_us": problem[1] - empty[0]},
        "threads": programs,
        "launches": launches,
        "triton_version": triton.__version__,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--launches", type=int, default=20_000, help="launches to time of each kind"
    )
    options = parser.parse_args()
    if options.launches < 10:
        parser.error("--launches must be at least 10")
    result = measure(options.launches)
    if options.json:
        print(json.dumps(result))
        return
    print(f"a launch with Triton {result['triton_version']}, {result['launches']} times (us)")
    for name in ("total", "triton", "runtime", "parallel", "look_up", "problem"):
        row = result[name]
        p90 = f"   p90 {row['p90_us']:6.2f}" if "p90_us" in row else ""
        extra = f"   ({result['threads']} threads)" if name == "parallel" else ""
        print(f"  {name:<9} median {row['median_us']:6.2f}{p90}{extra}")


if __name__ == "__main__":
    main()
