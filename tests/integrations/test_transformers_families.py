"""Every family of models computes with `attn_implementation="tritune"` what `eager` does."""

from __future__ import annotations

import pytest
import torch

from tests.integrations.families import (
    DECODERS,
    ENCODERS,
    exact_logits,
    greedy,
    logits,
    make,
    padding,
)
from tests.integrations.families import prompt as make_prompt
from tritune.testing import assert_within_rule


def check_logits(family: str, dtype: torch.dtype, sides: tuple[str, ...]) -> None:
    model, ids = make(family, dtype), make_prompt(40)
    for side in sides:
        mask = padding(ids, side)
        out, plain = (
            logits(model, attention, ids, attention_mask=mask)[mask.bool()]
            for attention in ("tritune", "eager")
        )
        exact = exact_logits(model, ids, mask)
        assert_within_rule(out, exact, plain)


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_logits_are_those_of_eager_with_padding_on_either_side(family: str) -> None:
    check_logits(family, torch.float32, ("none", "left", "right"))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_in_bfloat16_are_as_good_as_those_of_eager(family: str) -> None:
    check_logits(family, torch.bfloat16, ("left",))


@pytest.mark.parametrize("family", DECODERS)
def test_greedy_tokens_are_those_of_eager(family: str) -> None:
    model, ids = make(family), make_prompt(40)
    mask = padding(ids, "left")
    assert greedy(model, "tritune", ids, attention_mask=mask) == greedy(
        model, "eager", ids, attention_mask=mask
    )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_greedy_tokens_with_a_static_cache_are_those_of_eager(family: str) -> None:
    model, ids = make(family), make_prompt(40)
    mask = padding(ids, "left")
    expected = greedy(model, "eager", ids, attention_mask=mask)
    static = {"attention_mask": mask, "cache_implementation": "static"}
    assert greedy(model, "tritune", ids, **static) == expected
