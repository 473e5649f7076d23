"""`tritune.enable(model)` changes a model, and its undoing leaves no trace."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import tritune
from tests.integrations.families import greedy, logits, make, padding
from tests.integrations.families import prompt as make_prompt
from tritune.integrations import Enabled, IntegrationError, enable_all
from tritune.integrations.transformers.cache import let_grow


def forward_logits(model: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(ids, **inputs).logits
    return result


#: What there is to change in two layers of each family.
PARTS = {
    "llama": {"RMS norms": 5, "rotary embeddings": 2, "gated layers": 2},
    "gemma3": {"RMS norms": 13, "rotary embeddings": 2, "gated layers": 2},
    "phi3": {"RMS norms": 5, "rotary embeddings": 2, "gated layers": 2},
    "gpt_oss": {"RMS norms": 5},
}


@pytest.mark.parametrize("family", PARTS)
def test_an_enabled_model_computes_the_same_and_undoing_restores_it(family: str) -> None:
    model, ids = make(family), make_prompt(40)
    before = logits(model, "eager", ids)
    tokens = greedy(model, "eager", ids)
    with tritune.enable(model) as enabled:
        assert enabled.changed == {"attention": 2, "caches": 1, **PARTS[family]}
        after = forward_logits(model, ids)
        assert model.config._attn_implementation == "tritune"
        assert greedy(model, "tritune", ids) == tokens
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-4)
    assert not torch.equal(before, after)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(forward_logits(model, ids), before)


def test_disable_undoes_what_enable_did_and_nothing_else() -> None:
    model, ids = make("llama"), make_prompt(8)
    before = logits(model, "sdpa", ids)
    tritune.enable(model)
    tritune.enable(model, norms=False)  # in the place of the first
    tritune.disable(model)
    tritune.disable(model)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(forward_logits(model, ids), before)


def test_linear_layers_are_changed_where_asked() -> None:
    model, ids = make("llama"), make_prompt(8)
    before = logits(model, "eager", ids)
    with tritune.enable(model, linear=True) as enabled:
        assert enabled.changed["linear layers"] == 15
        after = forward_logits(model, ids)
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-4)
    assert torch.equal(forward_logits(model, ids), before)


@pytest.mark.parametrize("bits", [8, 4])
def test_linear_layers_may_have_weights_in_few_bits(bits: int) -> None:
    model, ids = make("llama"), make_prompt(8)
    rounded = copy.deepcopy(model)
    for name, layer in rounded.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            weight = tritune.quantize_weight(layer.weight.detach(), bits, 32)
            layer.weight = torch.nn.Parameter(weight.dequantize())
    expected, before = logits(rounded, "eager", ids), logits(model, "eager", ids)
    with tritune.enable(model, bits=bits, group=32) as enabled:
        assert enabled.changed[f"linear layers in {bits} bits"] == 14
        after = forward_logits(model, ids)
    assert torch.allclose(after, expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(after, before, rtol=1e-3, atol=1e-4)
    assert torch.equal(forward_logits(model, ids), before)


@pytest.mark.parametrize("mode", ["training", "evaluation"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
def test_where_gradients_are_needed_every_layer_does_what_it_did(family: str, mode: str) -> None:
    model, ids = make(family), make_prompt(40)
    model.set_attn_implementation("eager")
    model.train(mode == "training")
    mask = padding(ids, "left")
    gradients = []
    for enabled in (Enabled(), tritune.enable(model)):
        torch.manual_seed(0)  # for what is dropped
        model.zero_grad()
        with enabled:
            model(ids, attention_mask=mask).logits.square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_an_enabled_model_is_served_again_after_training() -> None:
    model, ids = make("llama"), make_prompt(8)
    with tritune.enable(model):
        served = forward_logits(model, ids)
        model.train()(ids).logits.sum().backward()
        assert torch.equal(forward_logits(model.eval(), ids), served)
        assert model.config._attn_implementation == "tritune"


def test_a_copy_of_an_enabled_model_can_be_trained_by_itself() -> None:
    model, ids = make("llama"), make_prompt(8)
    with tritune.enable(model):
        other = copy.deepcopy(model).train()
        other(ids).logits.sum().backward()
        assert model.config._attn_implementation == "tritune"
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("bits", [8, 4])
def test_gradients_pass_through_weights_in_few_bits(bits: int) -> None:
    model, ids = make("llama"), make_prompt(8)
    with tritune.enable(model, bits=bits, group=32):
        expected = forward_logits(model, ids)
        logits_ = model(ids).logits
        logits_.sum().backward()
    assert torch.allclose(logits_, expected, rtol=1e-3, atol=1e-4)
    assert model.model.embed_tokens.weight.grad.abs().max() > 0
    assert model.model.layers[0].self_attn.q_proj.weight.grad is None


def test_what_is_left_has_its_reason() -> None:
    model = make("llama", hidden_size=72, num_attention_heads=4, head_dim=16)
    enabled = tritune.enable(model, bits=4)
    reason = "no group of 128 or less divides 72 inputs"
    assert enabled.left["linear layers in 4 bits"] == {reason: 10}
    assert f"10 left ({reason})" in enabled.describe()


def test_a_copy_of_an_enabled_model_has_weights_of_its_own() -> None:
    model, ids = make("llama"), make_prompt(8)
    with tritune.enable(model):
        other = copy.deepcopy(model)
        before = forward_logits(model, ids)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert torch.equal(forward_logits(other, ids), before)


def test_what_cannot_be_enabled_is_refused_with_a_reason() -> None:
    with pytest.raises(IntegrationError, match=r"'jax', allowed: 'transformers', or a model"):
        tritune.enable("jax")
    with pytest.raises(IntegrationError, match=r"bits is 3, allowed: 8, 4, None"):
        tritune.enable(make("llama"), bits=3)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_cache_that_grows_in_place_holds_what_transformers_would(family: str) -> None:
    model, ids = make(family), make_prompt(300)
    caches = {name: DynamicCache(config=model.config) for name in ("copied", "grown")}
    let_grow(caches["grown"])
    # More tokens than there is room for at first; some are taken away in between.
    for start, end, remove in ((0, 5, 0), (5, 6, 0), (6, 280, 3), (277, 278, 0), (278, 300, 0)):
        for cache in caches.values():
            forward_logits(model, ids[:, start:end], past_key_values=cache)
            if remove and family == "llama":
                cache.crop(-remove)
        if remove and family != "llama":
            break
    for one, other in zip(caches["copied"].layers, caches["grown"].layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
        assert one.get_seq_length() == other.get_seq_length()


def test_keys_that_were_taken_from_a_growing_cache_do_not_change() -> None:
    model, ids = make("llama"), make_prompt(20)
    cache = DynamicCache(config=model.config)
    let_grow(cache)
    forward_logits(model, ids, past_key_values=cache)
    taken = cache.layers[0].keys
    expected = taken.clone()
    cache.crop(-5)
    forward_logits(model, ids[:, :7], past_key_values=cache)
    assert torch.equal(taken, expected)


def test_enable_all_changes_a_model_while_it_generates_only() -> None:
    model, ids = make("llama"), make_prompt(40)
    mask = padding(ids, "left")
    expected = greedy(model, "sdpa", ids, attention_mask=mask)
    seen = []
    hook = model.model.register_forward_pre_hook(
        lambda *_: seen.append(model.config._attn_implementation)
    )
    with enable_all():
        assert greedy(model, "sdpa", ids, attention_mask=mask) == expected
    assert set(seen) == {"tritune"}
    hook.remove()
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_pre_hooks
    assert greedy(model, "sdpa", ids, attention_mask=mask) == expected


def test_enable_all_leaves_a_model_alone_that_has_to_return_its_attention() -> None:
    model, ids = make("llama"), make_prompt(8)
    model.set_attn_implementation("eager")
    with enable_all():
        result = model.generate(
            ids, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True
        )
    assert result.attentions[0][0].shape == (2, 4, 8, 8)
