"""How fast a device can be at all: arithmetic and memory, measured on the device itself.

On a CPU by loops that do nothing else (`peaks.py`). A kernel that comes close to these limits has
nothing left to gain.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tritune.targets.device import detect
from tritune.targets.probes import COPY, NARROW, READ, WIDE, Probe, cache_bytes, probes

#: All probes are called in turns for so long, and so often at least.
_SECONDS, _LEAST_ROUNDS = 1.0, 20


@dataclass(frozen=True)
class Limits:
    """What a device reaches at best."""

    #: Operations of a matrix product, by the name of the type: "float16", for one.
    flops_per_second: Mapping[str, float]
    read_bytes_per_second: float
    #: What is read and what is written, counted together. Both at once can be more than reading.
    moved_bytes_per_second: float
    #: So much of what is written may stay in caches.
    cache_bytes: int

    def flops_for(self, dtype: str) -> float:
        """Of this type; for one that was not measured, the best of all, so that it is a limit."""
        return self.flops_per_second.get(dtype) or max(self.flops_per_second.values())


@dataclass(frozen=True)
class Bound:
    """What takes a problem longest: so much of a thing that has this limit."""

    #: A dtype, READ or COPY.
    kind: str
    #: Operations or bytes.
    amount: float
    #: The same in a second, at best.
    rate: float

    @property
    def seconds(self) -> float:
        return self.amount / self.rate


def measure_limits(device: torch.device) -> Limits:
    """The device's limits, measured in about a second, once in a process."""
    return _measured(device, detect(device).cores)[0]


def fastest_probe(kind: str, device: torch.device) -> Probe:
    """The one that a limit was found with: of a dtype, READ or COPY."""
    chosen, index = _measured(device, detect(device).cores)[1][kind]
    return probes(chosen, device)[index]


@functools.cache
def _measured(device: torch.device, cores: int) -> tuple[Limits, Mapping[str, tuple[str, int]]]:
    """The limits, and the probe that each was found with: its kind and number."""
    rates = _best_rates(
        {kind: probes(kind, device) for kind in (WIDE, *NARROW, READ, COPY)}, device
    )
    best = {kind: max(each) for kind, each in rates.items() if each}
    chosen = {kind: (kind, rates[kind].index(rate)) for kind, rate in best.items()}
    for kind in NARROW:
        # Values can be widened, so that a narrow type is never slower than the wide one.
        if best.get(kind, 0.0) < best[WIDE]:
            best[kind], chosen[kind] = best[WIDE], chosen[WIDE]
    flops = {kind: best[kind] for kind in (WIDE, *NARROW)}
    moved = max(best[READ], best[COPY])
    return Limits(flops, best[READ], moved, cache_bytes(device)), chosen


def _best_rates(
    kinds: Mapping[str, Sequence[Probe]], device: torch.device
) -> dict[str, list[float]]:
    """The best units per second of each probe. They are called in turns, so that whatever else the
    machine does meets all of them.
    """
    rates = {kind: [0.0] * len(each) for kind, each in kinds.items()}
    begin, rounds = time.perf_counter(), 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() - begin < _SECONDS:
        rounds += 1
        for kind, each in kinds.items():
            for i, probe in enumerate(each):
                rates[kind][i] = max(rates[kind][i], probe.rate(device, calls=1))
    return rates
