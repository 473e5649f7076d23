"""Try a library's first calls in a process of their own, which a crash may end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch

from tritune.kernels.kernel import Problem
from tritune.tuning.workers.failures import failure_of_exit
from tritune.workloads.case import open_case
from tritune.workloads.libraries.library import LIBRARIES, Library, vendors
from tritune.workloads.workload import Workload

#: Compiling takes seconds, on a busy machine many.
SECONDS = 300.0

_known: dict[tuple[str, str, str], str | None] = {}


def crash_of(library: Library, workload: Workload, problem: Problem) -> str | None:
    """Return how a plug-in crashes on this problem; None if it does not.

    It is tried once for each op and dtype. Exceptions do not count: they can be caught.
    """
    if not library.plug_in:
        return None
    fields = problem.fields()
    key = library.name, workload.name, str(fields["dtype"])
    if key not in _known:
        call = ["-m", __name__, library.name, workload.name, json.dumps(fields)]
        _known[key] = failure_of([sys.executable, *call])
    return _known[key]


def failure_of(command: Sequence[str]) -> str | None:
    """Run a command; return how it failed, None if it did not."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"takes longer than {SECONDS:g} s"
    return failure_of_exit(run.returncode, run.stderr).message if run.returncode else None


def main(library: str, workload: str, fields: str) -> None:
    """Make each of a library's calls for a problem twice: the first one compiles."""
    case = open_case(workload, json.loads(fields))
    with torch.no_grad():
        calls, _ = vendors(case.workload, case.inputs, [LIBRARIES[library]])
        for call in calls.values():
            with suppress(Exception):
                call()
                call()


if __name__ == "__main__":
    main(*sys.argv[1:])
