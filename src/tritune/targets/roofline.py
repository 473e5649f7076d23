"""The roofline of a device: its peak arithmetic and bandwidth, measured on the device itself.

On a CPU by loops that do nothing else. A kernel that comes close has nothing left to gain.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from tritune.targets.device import detect
from tritune.targets.probes import COPY, NARROW, READ, WIDE, Probe, cache_bytes, probes

#: The probes are called in turns for at least this long and this often.
_SECONDS, _LEAST_ROUNDS = 1.0, 20


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of a device, as measured."""

    #: Operations of matrix products, by dtype.
    flops_per_second: Mapping[str, float]
    read_bytes_per_second: float
    #: Bytes read and written together. It can be more than reading alone.
    moved_bytes_per_second: float
    #: Written bytes that may stay in caches.
    cache_bytes: int

    def flops_for(self, dtype: str) -> float:
        """Return the peak of a dtype; of one that was not measured, the highest of all."""
        return self.flops_per_second.get(dtype) or max(self.flops_per_second.values())


@dataclass(frozen=True)
class Bound:
    """The bottleneck of a problem: an amount of work and its peak rate."""

    #: A dtype, READ or COPY.
    kind: str
    #: Operations or bytes.
    amount: float
    #: Operations or bytes per second.
    rate: float

    @property
    def seconds(self) -> float:
        return self.amount / self.rate


def measure_peaks(device: torch.device) -> PeakRates:
    """Measure a device in about a second, once per process."""
    return _measured(device, detect(device).cores)[0]


def fastest_probe(kind: str, device: torch.device) -> Probe:
    """Return the fastest probe of a dtype, of READ or of COPY."""
    chosen, index = _measured(device, detect(device).cores)[1][kind]
    return probes(chosen, device)[index]


@functools.cache
def _measured(device: torch.device, cores: int) -> tuple[PeakRates, Mapping[str, tuple[str, int]]]:
    """Return the peaks, and the kind and index of the probe that found each."""
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
    return PeakRates(flops, best[READ], moved, cache_bytes(device)), chosen


def _best_rates(
    kinds: Mapping[str, Sequence[Probe]], device: torch.device
) -> dict[str, list[float]]:
    """Return the best rate of each probe. They are called in turns, so that what else the machine
    does disturbs all of them.
    """
    rates = {kind: [0.0] * len(each) for kind, each in kinds.items()}
    begin, rounds = time.perf_counter(), 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() - begin < _SECONDS:
        rounds += 1
        for kind, each in kinds.items():
            for i, probe in enumerate(each):
                rates[kind][i] = max(rates[kind][i], probe.rate(device, calls=1))
    return rates
