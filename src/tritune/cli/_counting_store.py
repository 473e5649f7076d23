"""Count what a command adds to the store, so that it can say so when it is interrupted."""

from __future__ import annotations

from tritune.store import Store
from tritune.store.records import Build, Trial


class CountingStore(Store):
    """A store that counts what is added through it."""

    new_trials = new_builds = 0

    def __enter__(self) -> CountingStore:
        return self

    def add_trial(self, trial: Trial) -> bool:
        new = super().add_trial(trial)
        self.new_trials += new
        return new

    def add_build(self, build: Build) -> bool:
        new = super().add_build(build)
        self.new_builds += new
        return new
