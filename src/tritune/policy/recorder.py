"""Which problems a program really meets, and how often: counted in memory, written down now and
then.
"""

from __future__ import annotations

import torch

from tritune.kernels.kernel import Kernel, Problem

DispatchKey = tuple[Kernel, Problem, torch.device]


class Recorder:
    """Counts of problems since they were last written down."""

    def __init__(self) -> None:
        self._counts: dict[DispatchKey, int] = {}

    def count(self, key: DispatchKey) -> None:
        # On the way of every call: threads may lose a count against each other, never a problem.
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1

    def take(self) -> dict[DispatchKey, int]:
        """The counts so far, which are then forgotten."""
        counts, self._counts = self._counts, {}
        # A copy: a call that is on its way may still be adding to the old one.
        return dict(counts)
