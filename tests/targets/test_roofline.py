"""The least time that work can take."""

from __future__ import annotations

import pytest
import torch

from tritune.targets import roofline
from tritune.targets.roofline import Limits, measure_limits, seconds_at_limit

LIMITS = Limits({"float32": 1e12, "float16": 4e12}, read_bytes_per_second=1e11)


@pytest.mark.parametrize(
    ("flops", "read_bytes", "dtype", "seconds"),
    [
        (1e12, 0, "float32", 1.0),
        (1e12, 0, "float16", 0.25),
        (1e12, 2e11, "float32", 2.0),
        (0, 1e11, "float32", 1.0),
    ],
)
def test_the_slower_of_arithmetic_and_memory_decides(
    flops: float, read_bytes: float, dtype: str, seconds: float
) -> None:
    assert seconds_at_limit(flops, read_bytes, dtype, LIMITS) == pytest.approx(seconds)


def test_a_type_that_was_not_measured_gets_the_highest_limit() -> None:
    assert LIMITS.flops_for("float8_e4m3fn") == 4e12


def test_the_cpu_is_measured_once_for_every_type() -> None:
    limits = measure_limits(torch.device("cpu"))
    assert measure_limits(torch.device("cpu")) is limits
    assert list(limits.flops_per_second) == ["float32", "bfloat16", "float16"]
    assert min(limits.flops_per_second.values()) == limits.flops_per_second["float32"] > 0
    assert limits.read_bytes_per_second > 0


@pytest.mark.parametrize(
    ("measured", "limits"),
    [
        # Instructions for bfloat16 do not help float16, whose values bfloat16 cannot hold.
        ({"float32": 2e11, "bfloat16": 5e11, "float16": 1e9}, (2e11, 5e11, 2e11)),
        ({"float32": 2e11, "bfloat16": 1e9, "float16": 5e11}, (2e11, 2e11, 5e11)),
    ],
)
def test_what_is_slow_in_its_own_type_is_computed_in_float32(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float], limits: tuple[float, ...]
) -> None:
    def speed(device: torch.device, dtype: torch.dtype, to_beat: float) -> float:
        return measured[str(dtype).removeprefix("torch.")]

    monkeypatch.setattr(roofline, "_product_speed", speed)
    monkeypatch.setattr(roofline, "_read_speed", lambda device: 1e10)
    found = roofline._measured.__wrapped__(torch.device("cpu"), 2)
    assert tuple(found.flops_per_second[n] for n in ("float32", "bfloat16", "float16")) == limits
