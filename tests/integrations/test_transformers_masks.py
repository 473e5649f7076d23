"""Whatever mask a model makes or is given, no key is seen that `eager` does not see."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import BloomConfig, DynamicCache
from transformers.masking_utils import eager_mask

from tests.integrations.families import logits, make, padding
from tests.integrations.families import prompt as make_prompt
from tritune.integrations.errors import TrainingError
from tritune.integrations.transformers.mask import make_mask, pattern_of
from tritune.testing import assert_within_rule


def check(model: Any, ids: torch.Tensor, **inputs: Any) -> None:
    """That logits are those of eager; masks here leave no query without a key."""
    out, plain = (logits(model, attention, ids, **inputs) for attention in ("tritune", "eager"))
    exact = logits(copy.deepcopy(model).double(), "eager", ids, **inputs)
    assert_within_rule(out, exact, plain)


def test_a_mask_of_the_users_own_is_obeyed() -> None:
    ids = make_prompt(40)
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(2, 1, 40, 40, generator=generator) < 0.5
    seen |= torch.eye(40, dtype=torch.bool)
    added = torch.where(seen, 0.0, -1e9)
    model = make("mistral")
    check(model, ids, attention_mask=added)
    # A boolean one, which eager would add to the scores, says the same.
    one, other = (logits(model, "tritune", ids, attention_mask=each) for each in (seen, added))
    assert torch.allclose(one, other, atol=1e-5)


def test_packed_sequences_do_not_see_each_other() -> None:
    ids = make_prompt(40, batch=1)
    positions = torch.cat([torch.arange(15), torch.arange(25)])[None]
    model = make("llama")
    # Without a cache, as in training: with one, transformers does not look at the positions.
    packed = {"position_ids": positions, "use_cache": False}
    check(model, ids, **packed)
    alone = logits(model, "tritune", ids[:, 15:])
    together = logits(model, "tritune", ids, **packed)[:, 15:]
    assert torch.allclose(alone, together, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_prompt_in_pieces_gives_the_logits_of_the_whole(family: str) -> None:
    model, ids = make(family), make_prompt(40)
    whole = logits(model, "eager", ids, attention_mask=padding(ids, "left"))
    cache, pieces = DynamicCache(config=model.config), []
    for start, end in ((0, 20), (20, 39), (39, 40)):
        mask = padding(ids, "left")[:, :end]
        pieces.append(
            logits(model, "tritune", ids[:, start:end], attention_mask=mask, past_key_values=cache)
        )
    seen = padding(ids, "left").bool()
    assert torch.allclose(torch.cat(pieces, dim=1)[seen], whole[seen], atol=1e-4)


def test_plain_masks_are_none_or_short() -> None:
    config = make("llama", attn_implementation="tritune").config
    sizes = {"batch_size": 2, "q_length": 8, "kv_length": 8, "config": config}
    assert make_mask(**sizes) is None
    seen = torch.ones(2, 8, dtype=torch.bool)
    assert make_mask(**sizes, attention_mask=seen) is None
    seen[0, :3] = False
    mask = make_mask(**sizes, attention_mask=seen)
    assert mask is not None and torch.equal(mask, seen)
    # Keys that a cache of a fixed size has room for, but does not have yet.
    mask = make_mask(**{**sizes, "kv_length": 32}, q_offset=4, attention_mask=seen.repeat(1, 2))
    assert mask is not None and mask.shape == (2, 12)


def test_whoever_did_not_ask_for_the_attention_gets_the_mask_of_eager() -> None:
    seen = torch.ones(2, 8, dtype=torch.bool)
    seen[0, :3] = False
    sizes = {"batch_size": 2, "q_length": 8, "kv_length": 8, "attention_mask": seen}
    mask = make_mask(**sizes, config=BloomConfig())
    assert mask is not None and torch.equal(mask, eager_mask(**sizes))


def test_a_function_that_is_not_known_makes_the_whole_mask() -> None:
    def odd(batch: object, head: object, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (k % 2 == 1)

    config = make("llama", attn_implementation="tritune").config
    mask = make_mask(batch_size=1, q_length=4, kv_length=4, mask_function=odd, config=config)
    assert mask is not None and mask.shape == (1, 1, 4, 4)
    assert mask[0, 0, 3].tolist() == [False, True, False, True]
    assert pattern_of(mask) is None


def test_a_model_in_training_mode_is_told_what_to_use() -> None:
    model = make("llama").train()
    model.set_attn_implementation("tritune")
    with pytest.raises(
        TrainingError, match=r"model\.eval\(\).*set_attn_implementation\(\"sdpa\"\)"
    ):
        model(make_prompt(4))


def test_gradients_in_evaluation_mode_are_those_of_eager() -> None:
    model, ids = make("gpt_oss"), make_prompt(40)
    gradients = {}
    for attention in ("eager", "tritune"):
        model.set_attn_implementation(attention)
        model.zero_grad()
        model(ids).logits.square().mean().backward()
        gradients[attention] = model.model.layers[0].self_attn.k_proj.weight.grad.clone()
    assert torch.allclose(gradients["tritune"], gradients["eager"], rtol=1e-3, atol=1e-6)


def test_heads_that_the_kernels_do_not_know_are_computed_all_the_same() -> None:
    model = make("qwen3", head_dim=320, num_hidden_layers=1)
    check(model, make_prompt(10), attention_mask=padding(make_prompt(10), "right", 3))
