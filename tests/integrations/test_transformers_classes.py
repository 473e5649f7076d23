"""Each class of models is served right, refused with a sentence, or left as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

import tritune
from tests.integrations.compare import outcome
from tests.integrations.tiny import build, classes
from tests.integrations.transformers_table import LIST, committed
from tritune.integrations import IntegrationError
from tritune.integrations.transformers import NAME

#: Attention of their own: transformers refuses "sdpa" to most of them.
REFUSED = [
    "BigBirdForCausalLM", "BloomForCausalLM", "CodeGenForCausalLM", "DebertaModel",
    "FalconForCausalLM", "FlaubertModel", "GPTJForCausalLM", "GPTNeoForCausalLM",
    "GPTNeoXJapaneseForCausalLM", "IBertModel", "LEDModel", "LongformerModel", "MPNetModel",
    "MegatronBertForCausalLM", "MiniMaxM3VLModel", "MptForCausalLM", "NystromformerModel",
    "OpenAIGPTLMHeadModel",
    "ProphetNetModel", "RoFormerForCausalLM", "SamVisionModel", "SqueezeBertModel",
    "XGLMForCausalLM", "XLNetLMHeadModel",
]  # fmt: skip
#: Decoders, encoders, both; towers for images and sound; masks, biases and caches of many kinds.
SERVED = [
    "BartForConditionalGeneration", "BertForMaskedLM", "CLIPModel", "ElectraModel",
    "GPT2LMHeadModel", "GPTNeoXForCausalLM", "Gemma3Model", "HubertModel", "JambaForCausalLM",
    "OPTForCausalLM", "Qwen2VLModel", "RobertaForCausalLM", "StableLmForCausalLM",
    "T5ForConditionalGeneration", "ViTModel", "WhisperModel",
]  # fmt: skip
#: These read the masks of the model themselves, besides the attention that is registered.
MIXED = [
    "BigBirdPegasusForCausalLM",
    "BridgeTowerModel",
    "DeepseekV4Model",
    "PegasusXModel",
    "SplinterModel",
]
#: A layer of these selects the keys that attention may see.
SPARSE = ["AXK2Model", "DeepseekV32Model", "GlmMoeDsaModel"]
LEFT = ["FNetModel", "MambaModel", "ResNetModel"]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "refused") for name in REFUSED),
        *((name, "served") for name in (*SERVED, *MIXED, *SPARSE)),
        *((name, "left") for name in LEFT),
    ],
)
def test_nothing_is_silently_different(name: str, kind: str) -> None:
    found = outcome(name, classes()[name])
    assert found.kind == kind, found.detail
    if kind == "refused":
        assert re.search(r'use attn_implementation="(eager|sdpa)"$', found.detail)


def test_the_list_of_classes_is_that_of_the_installed_transformers() -> None:
    if f"transformers {transformers.__version__}\n" not in LIST.read_text():
        pytest.skip(f"the list is of another release than {transformers.__version__}")
    kinds = committed()
    assert kinds.keys() == classes().keys()
    assert "wrong" not in kinds.values()
    tried = {**dict.fromkeys(REFUSED, "refused"), **dict.fromkeys(LEFT, "left")}
    tried.update(dict.fromkeys([*SERVED, *MIXED, *SPARSE], "served"))
    assert {name: kinds[name] for name in tried} == tried


def test_a_model_with_a_part_that_cannot_be_served_is_refused_whole_and_enabled_in_part() -> None:
    name = "VisionEncoderDecoderModel"
    encoder, decoder = build("ViTModel", "vit"), build("BloomForCausalLM", "bloom")
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder.config, decoder.config
    )
    with pytest.raises(IntegrationError, match="BloomForCausalLM has attention of its own"):
        getattr(transformers, name)._from_config(config, attn_implementation=NAME)
    both = torch.nn.ModuleList([encoder, decoder])
    with tritune.enable(both) as enabled:
        assert enabled.changed == {"attention": 2}
        assert enabled.left == {
            "attention": {"BloomAttention does not go through transformers' AttentionInterface": 2}
        }
    assert encoder.config._attn_implementation == decoder.config._attn_implementation == "eager"


def test_what_is_named_a_model_but_is_none_has_nothing_to_serve() -> None:
    enabled = tritune.enable(torch.nn.Linear(3, 4))
    assert enabled.changed == enabled.left == {}
    assert enabled.describe() == "nothing to serve"
