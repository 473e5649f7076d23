"""What a device reaches at best is measured once, by the fastest of several probes."""

from __future__ import annotations

import pytest
import torch

from tritune.targets import roofline
from tritune.targets.probes import COPY, READ, Probe, probes
from tritune.targets.roofline import PeakRates, fastest_probe, measure_peaks

CPU = torch.device("cpu")
DTYPES = ("float32", "bfloat16", "float16")


def test_a_type_that_was_not_measured_gets_the_highest_limit() -> None:
    peaks = PeakRates({"float32": 1e12, "float16": 4e12}, 1e11, 1e11, 0)
    assert peaks.flops_for("float8_e4m3fn") == 4e12


def test_the_cpu_is_measured_once_for_every_type() -> None:
    peaks = measure_peaks(CPU)
    assert measure_peaks(CPU) is peaks
    assert tuple(peaks.flops_per_second) == DTYPES
    assert min(peaks.flops_per_second.values()) == peaks.flops_per_second["float32"] > 0
    assert peaks.moved_bytes_per_second >= peaks.read_bytes_per_second > 0
    assert peaks.cache_bytes > 0


@pytest.mark.parametrize("kind", [*DTYPES, READ, COPY])
def test_the_probe_that_was_the_fastest_can_be_called_again(kind: str) -> None:
    probe = fastest_probe(kind, CPU)
    probe.call()
    assert probe.units > 0


@pytest.mark.parametrize("kind", [READ, COPY])
def test_memory_that_is_read_is_larger_than_the_caches(kind: str) -> None:
    cache = measure_peaks(CPU).cache_bytes
    assert all(probe.units >= 0.99 * cache for probe in probes(kind, CPU))


@pytest.mark.parametrize(
    ("measured", "peaks"),
    [
        # Instructions for bfloat16 do not help float16, whose values bfloat16 cannot hold.
        ({"float32": 2e11, "bfloat16": 5e11, "float16": 1e9}, (2e11, 5e11, 2e11)),
        ({"float32": 2e11, "bfloat16": 1e9, "float16": 5e11}, (2e11, 2e11, 5e11)),
    ],
)
def test_what_is_slow_in_its_own_type_is_computed_in_float32(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float], peaks: tuple[float, ...]
) -> None:
    rates = {**measured, READ: 1e10, COPY: 2e10}
    monkeypatch.setattr(roofline, "probes", lambda kind, device: [Probe(lambda: None, 1.0)])
    monkeypatch.setattr(
        roofline, "_best_rates", lambda kinds, device: {kind: [rates[kind]] for kind in kinds}
    )
    found, _ = roofline._measured.__wrapped__(CPU, 2)
    assert tuple(found.flops_per_second[name] for name in DTYPES) == peaks
    assert (found.read_bytes_per_second, found.moved_bytes_per_second) == (1e10, 2e10)
