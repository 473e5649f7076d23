"""A process that measures on a device, told by its input.

Run as `python -m tests.tuning.workers.lock_holder`.

Says on its output when it waits and for whom, and when it has the device. An empty line on its
input ends that, and "again" makes it take the device another time after that.
"""

from __future__ import annotations

import sys

from tritune.tuning.workers.device_lock import device_lock


def hold() -> bool:
    """Have the device until a line comes in: whether to take it again."""
    with device_lock("cpu", waiting=lambda holder: print("waits for", holder, flush=True)):
        print("measures", flush=True)
        return sys.stdin.readline().strip() == "again"


if __name__ == "__main__":
    while hold():
        pass
