"""A tuning run as a program of its own, to be killed: `python -m tests.tuning.killable STORE`.

It tunes a small space over real workers, and says on standard output which configs the store has
confirmed, one key per line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tuning import faulty
from tests.tuning.tasks import tune
from tritune.space import Listed
from tritune.store import Store
from tritune.store.records import Trial

CONFIGS = [faulty.config(repeat=repeat) for repeat in (1, 2, 3, 4, 6, 8, 12, 16)]
CONFIGS += [faulty.config("wrong"), faulty.config("does not compile"), faulty.config("raises")]


class Announcing(Store):
    """Says what it has committed, once it has."""

    def add_trial(self, trial: Trial) -> bool:
        new = super().add_trial(trial)
        print("new" if new else "again", trial.config.key, flush=True)
        return new


def main(location: Path) -> None:
    with Announcing(location) as store:
        tune(store, Listed(CONFIGS), CONFIGS[-4])
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
