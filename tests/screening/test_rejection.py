"""What a binary's facts mean for a target."""

from __future__ import annotations

from typing import Any

import pytest

from tritune.screening.rejection import CHOSEN_SPILLED_PART, SPILLED_PART, Spilling, rejection_of
from tritune.space import Config
from tritune.targets.limits import Limits, limits_of
from tritune.targets.target import Target

A100, MI300, W7900 = (
    limits_of(Target.parse(name)) for name in ("cuda:80", "hip:gfx942", "hip:gfx1100")
)
CONFIG = Config.of(BLOCK_M=128)
GOOD = {"registers": 128, "spills": 0, "shared_bytes": 65536, "code_bytes": 9000, "num_warps": 4}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"shared_bytes": 163 * 1024 + 1}, "shared memory"),
        ({"num_warps": 64}, "2048 threads"),
        ({"registers": 255, "num_warps": 16}, "255 registers"),
        ({"tensor_memory_columns": 513}, "tensor memory"),
    ],
    ids=["shared-memory", "threads", "registers", "tensor-memory"],
)
def test_what_cannot_be_launched_is_out_of_resources(changes: dict[str, Any], says: str) -> None:
    rejection = rejection_of(CONFIG, {**GOOD, **changes}, A100)
    assert rejection is not None and rejection.reason == "out_of_resources"
    assert says in rejection.message


def test_a_little_spilling_is_tolerated_and_much_is_not() -> None:
    most = int(SPILLED_PART * 4 * GOOD["registers"])
    assert rejection_of(CONFIG, {**GOOD, "spills": most}, A100) is None
    assert rejection_of(CONFIG, {**GOOD, "spills": most + 4}, A100).reason == "spills"


@pytest.mark.parametrize(
    ("config", "limits", "warps", "chosen"),
    [
        (Config.of(maxnreg=128), A100, 4, True),
        (Config.of(maxnreg=128), A100, 16, False),  # 512 threads cannot have more
        (Config.of(maxnreg=255), A100, 4, False),
        (Config.of(waves_per_eu=2), MI300, 4, True),
        (Config.of(waves_per_eu=2), MI300, 8, False),  # two waves of the block share a scheduler
        (Config.of(waves_per_eu=1), MI300, 4, False),
        (Config.of(waves_per_eu=4), W7900, 4, False),  # has room for six waves of 256 registers
    ],
    ids=str,
)
def test_who_chooses_few_registers_may_spill_less(
    config: Config, limits: Limits, warps: int, chosen: bool
) -> None:
    most = int((CHOSEN_SPILLED_PART if chosen else SPILLED_PART) * 4 * GOOD["registers"])
    facts = {**GOOD, "shared_bytes": 1024, "num_warps": warps}
    assert rejection_of(config, {**facts, "spills": most}, limits) is None
    assert rejection_of(config, {**facts, "spills": most + 4}, limits).reason == "spills"


def test_a_cpu_can_run_everything() -> None:
    facts = {"shared_bytes": 1, "code_bytes": 10**9, "num_warps": 1}
    assert rejection_of(CONFIG, facts, None) is None


def test_fewer_registers_spill_more() -> None:
    spilling = Spilling(A100)
    spilling.add(Config.of(BLOCK_M=128, maxnreg=168))
    assert spilling.implies(Config.of(BLOCK_M=128, maxnreg=128))
    assert not spilling.implies(Config.of(BLOCK_M=128, maxnreg=255))
    assert not spilling.implies(Config.of(BLOCK_M=64, maxnreg=128))


def test_more_waves_leave_fewer_registers_to_each() -> None:
    spilling = Spilling(MI300)
    spilling.add(Config.of(BLOCK_M=128, waves_per_eu=2))
    implied = [w for w in range(5) if spilling.implies(Config.of(BLOCK_M=128, waves_per_eu=w))]
    assert implied == [2, 3, 4], "0 leaves the choice to the compiler"


def test_nothing_follows_where_a_config_says_nothing_of_registers() -> None:
    spilling = Spilling(A100)
    spilling.add(Config.of(BLOCK_M=128))
    assert not spilling.implies(Config.of(BLOCK_M=128))
