"""What `tritune run` makes of a program's start: ten `triton.autotune` kernels, each called once.

The program is started four times, each time as a process of its own: with plain Python and an empty
Triton cache, again with the cache filled, under `tritune run` with an empty cache and an empty
store, and again with both filled. Seconds are those of the whole process, imports included; `busy`
is the processor time of it and its children in these seconds, that is, how many cores were in
use on average. `compiled` counts binaries that the program itself compiled (Triton's listener),
`trials` the configs that were tried for it (the store).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tritune.store import Store

PROGRAM = Path(__file__).with_name("ten_kernels.py")


def start(command, environment):
    """Run a program: its own report, seconds, and cores in use."""
    before, began = _processor_seconds(), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    report = json.loads(done.stdout)
    return {**report, "seconds": seconds, "busy": (_processor_seconds() - before) / seconds}


def _processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def trials(store):
    with Store(store) as opened:
        return len(opened.all_trials())


def measure(count, plain):
    """Every start, by its name."""
    program = [str(PROGRAM), "--kernels", str(count)]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store.sqlite")
        environment = {**os.environ, "TRITUNE_STORE": store}
        starts = [("tritune run", [sys.executable, "-m", "tritune.cli.main", "run"])]
        if plain:
            starts.insert(0, ("python", [sys.executable]))
        for name, command in starts:
            environment["TRITON_CACHE_DIR"] = os.path.join(folder, name)
            for number in ("first", "second"):
                before = trials(store)
                row = start([*command, *program], environment)
                found[f"{name}, {number} start"] = {**row, "trials": trials(store) - before}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=10, help="only the first N of ten")
    parser.add_argument("--no-plain", action="store_true", help="leave out plain Python")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure(options.kernels, not options.no_plain)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "starts": found}, indent=2))
        return
    print(f"{options.kernels} kernels, {os.cpu_count()} cores")
    print(f"{'':28}{'seconds':>9}{'busy':>7}{'compiled':>10}{'trials':>8}")
    for name, row in found.items():
        numbers = f"{row['seconds']:9.1f}{row['busy']:7.2f}{row['compiled']:10}{row['trials']:8}"
        print(f"{name:28}{numbers}")


if __name__ == "__main__":
    main()
