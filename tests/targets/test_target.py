"""Targets as text."""

from __future__ import annotations

import pytest

from tritune.targets.target import Target, TargetError


@pytest.mark.parametrize("text", ["cuda:90", "hip:gfx942", "cpu:x86-64-v4", "cpu:aarch64"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    assert str(Target.parse(text)) == text


def test_a_compute_capability_is_a_number() -> None:
    assert Target.parse("cuda:90") == Target("cuda", 90)


@pytest.mark.parametrize("text", ["", "cuda", "cuda:", "cuda:sm_90", "rocm:gfx942", ":90"])
def test_what_names_no_target_is_refused_with_examples(text: str) -> None:
    with pytest.raises(TargetError, match="hip:gfx942"):
        Target.parse(text)
