"""Continuous batching with a paged cache, and torch's compiler."""

from __future__ import annotations

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

import tritune
from tests.integrations.families import DECODERS, ENCODERS, exact_logits, logits, make, padding
from tests.integrations.families import prompt as make_prompt
from tritune.testing import assert_within_rule

NEW_TOKENS = 6


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_continuous_batching_generates_what_generate_does(family: str) -> None:
    model = make(family)
    prompts = [make_prompt(tokens, batch=1, seed=tokens) for tokens in (5, 40, 17)]
    expected = []
    for ids in prompts:
        model.set_attn_implementation("eager")
        tokens = model.generate(
            ids, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
        )
        expected.append(tokens[0, ids.shape[1] :].tolist())
    model.set_attn_implementation("tritune")
    # So few tokens at once that the second prompt is computed in pieces.
    results = model.generate_batch(
        [ids[0].tolist() for ids in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=32, max_batch_tokens=32, page_size=16
        ),
        progress_bar=False,
    )
    assert [result.generated_tokens for result in results.values()] == expected
    assert model.config._attn_implementation == "tritune"


@pytest.mark.parametrize(
    ("family", "backend"),
    [*((family, "eager") for family in [*DECODERS, *ENCODERS]), ("llama", "inductor")],
)
def test_a_compiled_model_computes_the_same(family: str, backend: str) -> None:
    torch.compiler.reset()
    model = make(family)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (40, 33):
        ids = make_prompt(tokens)
        mask = padding(ids, "left")
        model.set_attn_implementation("tritune")
        with torch.no_grad():
            out = compiled(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        plain = logits(model, "eager", ids, attention_mask=mask)[mask.bool()]
        assert_within_rule(out, exact_logits(model, ids, mask), plain)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_enabled_model_can_be_compiled(family: str) -> None:
    torch.compiler.reset()
    model, ids = make(family), make_prompt(40)
    mask = padding(ids, "left")
    plain = logits(model, "eager", ids, attention_mask=mask)[mask.bool()]
    with tritune.enable(model), torch.no_grad():
        # Padding is looked into, so that the compiler takes the layers one by one.
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            out = compiled(input_ids=ids, attention_mask=mask).logits[mask.bool()]
            assert_within_rule(out, exact_logits(model, ids, mask), plain)


def test_an_enabled_model_that_was_compiled_can_be_differentiated() -> None:
    torch.compiler.reset()
    model, ids = make("llama"), make_prompt(8)
    with tritune.enable(model):
        compiled = torch.compile(model, backend="eager")
        with torch.no_grad():
            served = compiled(ids).logits
        out = compiled(ids).logits
        out.sum().backward()
        compiled.train()(ids).logits.sum().backward()
    assert torch.allclose(out, served, rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is not None for parameter in model.parameters())
