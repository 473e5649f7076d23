"""Tiny models of any class that transformers has: its own config's defaults, made small."""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

#: The number of tokens below which all ids are, special ones among them.
VOCABULARY = 128
#: Parameters of the largest model that is still called tiny.
LARGEST = 30_000_000
#: What an integer field is set to where it is larger, by its name. The first that fits is taken.
SMALL: tuple[tuple[str, int], ...] = (
    (r".*vocab(ulary)?(_size)?(_\w+)?$", VOCABULARY),
    (r"mamba_(n|num)_heads", 8),
    (r"(mamba_)?d_head|mamba_head_dim", 16),
    (r"num_feat_extract_layers", 99),
    (r"index_topk", 8),
    (r"(.*_)?(num_(\w+_)?)?(attention_)?heads?|n_heads?|num_head", 4),
    (r"(.*_)?head_(dim|size)|d_kv|.*kv_channels|v_head_dim", 16),
    (r"rotary_dim", 8),
    (r"\w+_lora_rank|lora_rank", 16),
    (r"(.*_)?intermediate_(size|dim)|(.*_)?ffn(_hidden)?(_dim|_size)|d_ff|n_inner|d_inner"
     r"|(.*_)?mlp_(hidden_)?(dim|size)|(.*_)?feedforward_dim|expert_ffn_hidden_size", 64),
    (r"(.*_)?hidden_(size|dim)|d_model|n_embd|dim|embed_dim|(.*_)?embed(ding)?_(dim|size)"
     r"|(.*_)?(projection|proj|output|decoder_hidden|feature)_(dim|size)|emb_dim|width|hidden", 64),
    (r"(.*_)?(num_)?(\w+_)?(layers?|blocks?)|n_layers?|(.*_)?depth|num_hidden_layers", 2),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|top_?k|moe_k|num_experts_per_token|topk_group|n_group", 2),
    (r"max_\w*position\w*|n_positions|n_ctx|max_seq_len|max_target_positions", 256),
    (r"image_size|img_size|input_size", 64),
)  # fmt: skip
LAYER_LISTS = ("layer_types", "layers_block_type", "mlp_layer_types")
#: What has no default, and cannot do without.
MISSING: dict[str, Any] = {
    "pad_token_id": 0,
    "vocab_size": VOCABULARY,
    "prediction_length": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
#: What the defaults of a type of models leave out, or what must fit together.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dinov3_vit": {"rope_theta": 100.0},
    "glm4v_text": {"rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0}},
    "glm4v_moe_text": {"rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0}},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "attention_layers": ["global", "local"],
        "window_size": 12,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_offset": 1},
    "led": {"attention_window": [8, 8]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "longformer": {"attention_window": [8, 8]},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "qwen2_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_vl_text": {"rope_parameters": _MROPE},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 32]},
    "xmod": {"default_language": "en_XX"},
}
_TOKEN = re.compile(r".*_(token_)?(id|index|ids)$")


def classes() -> dict[str, str]:
    """The model classes of all of transformers' mappings, with their model types."""
    found: dict[str, str] = {}
    for name, mapping in sorted(vars(modeling_auto).items()):
        if not name.startswith("MODEL") or not name.endswith(("MAPPING_NAMES", "_NAMES")):
            continue
        for model_type, entry in mapping.items():
            for model_class in (entry,) if isinstance(entry, str) else entry:
                found.setdefault(model_class, model_type)
    return dict(sorted(found.items()))


def config_of(name: str, model_type: str) -> Any:
    """The config of a type of models, with its defaults, small."""
    config_class = getattr(transformers, name).config_class or CONFIG_MAPPING[model_type]
    return config_class.from_dict(_shrunk(config_class().to_dict()))


def _shrunk(fields: dict[str, Any]) -> dict[str, Any]:
    fields = dict(fields)
    for name, value in MISSING.items():
        if name in fields and fields[name] is None:
            fields[name] = value
    heads, shared = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    layers = 2
    kinds = next((fields[name] for name in LAYER_LISTS if isinstance(fields.get(name), list)), None)
    if kinds:
        different = [kind for at, kind in enumerate(kinds) if kind not in kinds[:at]]
        layers = max(2, len(different))
    for name, value in fields.items():
        if name in ("id2label", "label2id", "task_specific_params"):
            continue
        if isinstance(value, dict):
            fields[name] = _rope(value) if "rope_" in name else _shrunk(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            fields[name] = _small(name, value, layers)
        elif isinstance(value, list) and name in LAYER_LISTS:
            kinds = [kind for at, kind in enumerate(value) if kind not in value[:at]]
            fields[name] = (kinds + value[:1] * layers)[:layers]
        elif isinstance(value, list) and name == "num_heads":
            fields[name] = [2] * len(value)
        elif isinstance(value, list) and name == "depths":
            fields[name] = [1] * len(value)
        elif isinstance(value, list) and _TOKEN.match(name):
            fields[name] = [_small("x_token_id", at, 0) for at in value if isinstance(at, int)]
    if isinstance(heads, int) and isinstance(shared, int) and shared < heads:
        fields["num_key_value_heads"] = 1 if shared == 1 else 2
    for name in (
        "out_features",
        "out_indices",
        "_out_features",
        "_out_indices",
        "stage_names",
        "per_layer_config",
    ):
        fields.pop(name, None)
    return {**fields, **OWN.get(str(fields.get("model_type")), {})}


def _small(name: str, value: int, layers: int) -> int:
    if _TOKEN.match(name):
        # Ids stay apart from each other, and from those of a prompt.
        return value if value < 3 else 100 + value % 28
    for pattern, most in SMALL:
        if re.fullmatch(pattern, name):
            return min(value, layers if most == 2 and "layer" in name else most)
    return value


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Rotary parameters for heads of 16."""
    if any(isinstance(value, dict) for value in parameters.values()):
        return {
            kind: _rope(value) if isinstance(value, dict) else value
            for kind, value in parameters.items()
        }
    small = dict(parameters)
    if "mrope_section" in small:
        quarter = int(4 * small.get("partial_rotary_factor", 1))
        small["mrope_section"] = [quarter - quarter // 2, quarter // 2, quarter]
    for name in ("short_factor", "long_factor"):
        if name in small:
            small[name] = [1.0] * 8
    return small


def build(name: str, model_type: str, attention: str = "eager", like: Any = None) -> Any:
    """A tiny model in evaluation mode, with weights at random or those of another.

    Weights are such that attention looks at some keys more than at others.
    """
    model_class = getattr(transformers, name)
    if like is None:
        _check_size(model_class, config_of(name, model_type))
    torch.manual_seed(0)
    model = model_class._from_config(config_of(name, model_type), attn_implementation=attention)
    if like is not None:
        model.load_state_dict(like.state_dict())
        return model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.is_floating_point():
                parameter.normal_(0, 1.5 * parameter[0].numel() ** -0.5)
    return model.eval()


def _check_size(model_class: Any, config: Any) -> None:
    with torch.device("meta"):
        model = model_class._from_config(config, attn_implementation="eager")
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > LARGEST:
        raise ValueError(f"too large: {size / 1e6:.0f} million parameters")
