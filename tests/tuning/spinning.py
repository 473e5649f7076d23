"""A process that takes a CPU, for tests of what measuring does beside one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN = "import os; os.sched_setaffinity(0, {cpus}); print(flush=True)\nwhile True: pass"


@contextmanager
def beside_a_spinner() -> Iterator[None]:
    """This thread, and the processes that it starts, share one CPU with a process that never
    rests.
    """
    before = os.sched_getaffinity(0)
    cpu = {min(before)}
    command = [sys.executable, "-c", _SPIN.format(cpus=cpu)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as spinner:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        os.sched_setaffinity(0, cpu)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
            spinner.kill()
