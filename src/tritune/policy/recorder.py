"""Count the problems that a program meets, in memory."""

from __future__ import annotations

import torch

from tritune.kernels.kernel import Kernel, Problem

DispatchKey = tuple[Kernel, Problem, torch.device]


class Recorder:
    """Counts of problems since they were last written down."""

    def __init__(self) -> None:
        self._counts: dict[DispatchKey, int] = {}

    def count(self, key: DispatchKey) -> None:
        # Called for every launch, without a lock: threads may lose a count, never a problem.
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1

    def take(self) -> dict[DispatchKey, int]:
        """Return the counts so far, and forget them."""
        counts, self._counts = self._counts, {}
        # A copy: a call that is on its way may still be adding to the old one.
        return dict(counts)
