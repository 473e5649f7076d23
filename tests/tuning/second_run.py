"""A tuning run beside another: `python -m tests.tuning.second_run STORE`.

Says for whom it waits, what it has committed, and after its first batch that it has measured: then
it goes on when a line comes in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.tuning import faulty
from tests.tuning.killable import CONFIGS, Announcing
from tests.tuning.tasks import tune
from tritune.space import Listed
from tritune.store.records import Task, Trial
from tritune.tuning.job import Progress


class Believing(Announcing):
    """Has whatever is measured once the device is there believed: this test is not about that."""

    looks = 0

    def trials(self, task: Task) -> list[Trial]:
        self.looks += 1
        if self.looks > 1:  # the first is before the lock
            os.environ["TRITUNE_BUSY"] = "1"
        return super().trials(task)


class Watcher:
    """Says what the run does, and holds it up once it has measured something."""

    measured = False

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "waiting":
            print("waits for", progress.holder, flush=True)
        elif not self.measured:
            self.measured = True
            print("measured", flush=True)
            sys.stdin.readline()


def main(location: Path) -> None:
    os.environ.pop("TRITUNE_BUSY", None)
    with Believing(location) as store:
        outcome = tune(store, Listed(CONFIGS), faulty.config(), Watcher())
    print("done", outcome.new_trials, outcome.winner is not None, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
