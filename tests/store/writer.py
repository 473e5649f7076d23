"""A process that writes trials: `python -m tests.store.writer STORE NUMBER COUNT`.

It prints the config's key of each trial after it was committed.
"""

from __future__ import annotations

import sys

from tests.store.made import config, prepared, rounds, trial
from tritune.store import Store


def main(location: str, number: int, count: int) -> None:
    with Store(location) as store:
        prepared(store)
        for block in range(count):
            kept = trial(config(block, warps=number), rounds(1.0 + block, 1.1 + block))
            if store.add_trial(kept):
                print(kept.config.key, flush=True)
            store.record_problem("matmul", "{}", "gpu")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
