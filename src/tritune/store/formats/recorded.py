"""A recorded space: every config that somebody measured for one kernel on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritune.space import Config, Value


@dataclass(frozen=True)
class Recorded:
    """The time of one kernel on one device with each config, in ms; None where it failed.

    `name` says where it comes from, for people. `parameters` has the values that occur, in order.
    """

    name: str
    device: str
    kernel: str
    parameters: Mapping[str, tuple[Value, ...]]
    results: Mapping[Config, float | None]

    @property
    def best_ms(self) -> float | None:
        """Return the shortest time, or None where every config failed."""
        return min((ms for ms in self.results.values() if ms is not None), default=None)
