"""Occupancy follows the vendors' own rules: their worked examples come out as they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import known_targets, limits_of
from tritune.targets.occupancy import occupancy, reasons_against, warps_by_registers
from tritune.targets.target import Target

A100, T4, H100 = (limits_of(Target("cuda", c)) for c in (80, 75, 90))
MI250, MI300, MI355, RX7900 = (
    limits_of(Target("hip", arch)) for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100")
)
KIB = 1024


def facts(registers: int = 32, shared_bytes: int = 0) -> BinaryFacts:
    return BinaryFacts(registers, 0, shared_bytes, 4096)


@pytest.mark.parametrize(
    ("registers", "warps", "blocks", "fraction"),
    [
        # CUDA C++ Best Practices Guide, "Occupancy": 37 registers, blocks of 128 and 320 threads.
        (37, 4, 12, 0.75),
        (37, 10, 4, 0.625),
        # CUDA C++ Programming Guide, "Multiprocessor level": 64 registers, blocks of 512 threads,
        # and one register more.
        (64, 16, 2, 0.5),
        (65, 16, 1, 0.25),
        (32, 8, 8, 1.0),
        (255, 8, 1, 0.125),
    ],
)
def test_nvidia_allocates_registers_to_warps_in_granules(
    registers: int, warps: int, blocks: int, fraction: float
):
    found = occupancy(facts(registers), warps, A100)
    assert (found.blocks_per_core, found.fraction) == (blocks, fraction)
    assert found.warps_per_core == blocks * warps


@pytest.mark.parametrize(
    ("limits", "shared", "blocks"),
    [
        # One KiB of each block is the system's: three blocks of 54 KiB do not fit into 164.
        (A100, 54 * KIB, 2),
        (A100, 53 * KIB + 512, 3),
        (A100, 163 * KIB, 1),
        (H100, 227 * KIB, 1),
        (H100, 113 * KIB, 2),
        # Turing reserves nothing.
        (T4, 32 * KIB, 2),
        (T4, 32 * KIB + 1, 1),
    ],
)
def test_nvidia_reserves_shared_memory_for_each_block(limits, shared: int, blocks: int):
    found = occupancy(facts(shared_bytes=shared), 1, limits)
    assert (found.blocks_per_core, found.limited_by) == (blocks, "shared memory")


@pytest.mark.parametrize(
    ("registers", "waves"),
    # AMD lab notes, "Register pressure in AMD CDNA2 GPUs": waves per SIMD by registers.
    [(64, 8), (65, 7), (72, 7), (80, 6), (96, 5), (97, 4), (128, 4), (129, 3), (168, 3), (169, 2),
     (256, 2), (257, 1), (512, 1)],
)  # fmt: skip
def test_cdna_shares_512_registers_of_both_kinds_between_the_waves_of_a_simd(
    registers: int, waves: int
):
    for limits in (MI250, MI300, MI355):
        assert warps_by_registers(registers, limits) == 4 * waves


@pytest.mark.parametrize(("registers", "waves"), [(96, 16), (97, 12), (128, 10), (256, 5)])
def test_rdna3_shares_1536_registers_in_granules_of_24(registers: int, waves: int):
    # As LLVM's AMDGPU backend counts them for waves of 32 lanes.
    assert warps_by_registers(registers, RX7900) == 4 * waves


@pytest.mark.parametrize(
    ("limits", "shared", "blocks"),
    [
        (MI300, 64 * KIB, 1),
        (MI300, 16 * KIB, 4),
        (MI300, 16 * KIB + 1, 3),
        (MI355, 80 * KIB, 2),
        (MI355, 40 * KIB + 1, 3),
        # A work-group processor has the memory of two compute units.
        (RX7900, 64 * KIB, 2),
    ],
)
def test_amd_allocates_shared_memory_in_granules(limits, shared: int, blocks: int):
    assert occupancy(facts(shared_bytes=shared), 2, limits).blocks_per_core == blocks


def test_barriers_limit_small_blocks_on_cdna_but_not_single_waves():
    assert occupancy(facts(), 1, MI300).blocks_per_core == 32
    assert occupancy(facts(), 2, MI300).blocks_per_core == 16


def test_what_can_never_be_launched_has_all_its_reasons():
    assert reasons_against(facts(), 4, A100) == []
    reasons = reasons_against(facts(255, 200 * KIB), 64, A100)
    assert [reason.split(",")[0] for reason in reasons] == [
        "2048 threads per block",
        "204800 bytes of shared memory per block",
        "255 registers for each of 2048 threads",
    ]
    found = occupancy(facts(255, 200 * KIB), 64, A100)
    assert (found.blocks_per_core, found.warps_per_core) == (0, 0)


@given(
    st.sampled_from(known_targets()),
    st.integers(1, 256),
    st.integers(0, 228 * KIB),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_needing_more_never_makes_room(target: Target, registers: int, shared: int, warps: int):
    limits = limits_of(target)
    found = occupancy(facts(registers, shared), warps, limits)
    assert found.warps_per_core <= limits.warps_per_core
    assert found.blocks_per_core * shared <= limits.shared_per_core
    for more in (facts(registers + 8, shared), facts(registers, shared + KIB)):
        assert occupancy(more, warps, limits).blocks_per_core <= found.blocks_per_core
    assert (found.blocks_per_core > 0) == (
        not reasons_against(facts(registers, shared), warps, limits)
    )
