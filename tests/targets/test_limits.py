"""The table of architectures is whole, consistent with itself, and says what it does not know."""

from __future__ import annotations

import math

import pytest

from tests.kernels.gpu_compile import TARGETS
from tritune.targets.limits import known_targets, limits_of
from tritune.targets.target import Target, TargetError

KNOWN = [pytest.param(target, id=str(target)) for target in known_targets()]


def test_every_architecture_that_kernels_are_compiled_for_is_known():
    names = {str(target) for target in known_targets()}
    capabilities = {f"cuda:{c}" for c in (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)}
    assert names >= capabilities
    assert names >= {f"hip:{a}" for a in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")}


@pytest.mark.parametrize("text", ["cuda:70", "hip:gfx906", "cpu:x86-64-v4"])
def test_an_unknown_architecture_is_an_error_that_lists_the_known_ones(text: str):
    with pytest.raises(TargetError, match=r"cuda:75, cuda:80.*hip:gfx1201"):
        limits_of(Target.parse(text))


@pytest.mark.parametrize("target", KNOWN)
def test_a_core_does_a_power_of_two_of_products_in_a_clock(target: Target):
    # Clocks are rounded and some peaks are stated for a lower one, but no factor of two is missing.
    limits = limits_of(target)
    per_clock = limits.matrix_flops["float16"] / limits.cores / limits.clock_hz
    assert abs(math.log2(per_clock) - round(math.log2(per_clock))) < 0.1


@pytest.mark.parametrize("target", KNOWN)
def test_narrower_types_are_no_slower(target: Target):
    limits = limits_of(target)
    vector_flops = 2 * limits.vector_fmas_per_clock * limits.cores * limits.clock_hz
    assert limits.flops_for("float16") >= limits.flops_for("tfloat32") >= 0.9 * vector_flops
    if "float8" in limits.matrix_flops:
        assert limits.flops_for("float8") == pytest.approx(
            2 * limits.flops_for("float16"), rel=0.02
        )


@pytest.mark.parametrize("target", KNOWN)
def test_a_block_fits_on_a_core_and_figures_have_sources(target: Target):
    limits = limits_of(target)
    assert limits.shared_per_block + limits.shared_reserved <= limits.shared_per_core
    assert limits.threads_per_block <= limits.warps_per_core * limits.warp_size
    assert limits.registers_per_thread * 4 * limits.warp_size <= limits.registers_per_core
    assert limits.cache_bytes_per_second > limits.memory_bytes_per_second
    assert len(limits.sources) >= 3
    assert all(": " in source for source in limits.sources)


def test_a_type_without_matrix_instructions_is_computed_in_fp32():
    limits = limits_of(Target("cuda", 75))
    assert limits.flops_for("bfloat16") == limits.flops_for("float32")


def test_shared_memory_agrees_with_what_kernels_are_tested_against():
    for target in TARGETS:
        limits = limits_of(Target(target.family, target.arch))
        assert (limits.shared_per_block, limits.warp_size) == (
            target.shared_memory,
            target.warp_size,
        )
