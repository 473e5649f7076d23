"""The sizes of language models that their kernels depend on.

There are presets for known models; a YAML or JSON file with the same fields describes another.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tritune.errors import TrituneError, unknown
from tritune.workloads.problems.parse import wrong_types

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")


class ModelError(TrituneError):
    """A model that is not known, or a file that does not describe one."""


@dataclass(frozen=True)
class Model:
    name: str
    #: The size of the hidden state.
    hidden: int
    #: Query heads, heads of keys and values, and the size of each.
    heads: int
    kv_heads: int
    head_size: int
    #: The width of the feed-forward layer; of one expert's, where there are experts.
    mlp: int
    vocab: int
    #: The activation of the feed-forward layer's gate; None if it is none of ACTIVATIONS.
    activation: str | None = "silu"
    #: The window of layers with sliding-window attention.
    window: int | None = None
    #: True if there are layers without a window, too.
    full_attention: bool = True
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False
    #: Elements of a head with a rotary embedding: all if None.
    rotary: int | None = None
    #: True if queries and keys are normalised head by head.
    qk_norm: bool = False
    #: The number of experts that a token is routed to; None without experts.
    active_experts: int | None = None
    #: Bits of a quantized weight: 8 or 4.
    weight_bits: int | None = None

    @property
    def group(self) -> int:
        """Return the number of query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Return the windows of the layers; None stands for full attention."""
        if self.window is None:
            return (None,)
        return (None, self.window) if self.full_attention else (self.window,)


PRESETS = {
    model.name: model
    for model in (
        Model("llama-3-8b", 4096, 32, 8, 128, 14336, 128256),
        Model("llama-3-70b", 8192, 64, 8, 128, 28672, 128256),
        Model("llama-3.2-1b", 2048, 32, 8, 64, 8192, 128256),
        Model("qwen3-8b", 4096, 32, 8, 128, 12288, 151936, qk_norm=True),
        Model("gemma-3-4b", 2560, 8, 4, 256, 10240, 262208, "gelu_tanh", 1024, qk_norm=True),
        # Its gate is clamped, which no op of ours does.
        Model(
            "gpt-oss-20b", 2880, 64, 8, 64, 2880, 201088, None, 128, sinks=True, active_experts=4
        ),
        Model("mistral-7b", 4096, 32, 8, 128, 14336, 32000, window=4096, full_attention=False),
        Model("mixtral-8x7b", 4096, 32, 8, 128, 14336, 32000, active_experts=2),
        Model("phi-4", 5120, 40, 10, 128, 17920, 100352),
    )
}


def load_model(name_or_path: str) -> Model:
    """Return a preset by its name, or the model that a YAML or JSON file describes."""
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if path.is_file():
        return _from_file(path)
    if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
        raise ModelError(f"there is no file {name_or_path}")
    raise ModelError(
        f"{unknown('model', name_or_path, PRESETS)}; or give a YAML or JSON file of your own"
    )


def _from_file(path: Path) -> Model:
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, Mapping):
        raise ModelError(f"{path} holds no fields, such as 'hidden: 4096'")
    values = {"name": path.stem, **values}
    needed = [f.name for f in dataclasses.fields(Model) if f.default is dataclasses.MISSING]
    reasons = wrong_types(values, typing.get_type_hints(Model), needed)
    reasons = reasons or _wrong_sizes(Model(**values))
    if reasons:
        raise ModelError(f"{path}: {'; '.join(reasons)}. Compare the presets: {', '.join(PRESETS)}")
    return Model(**values)


def _wrong_sizes(model: Model) -> list[str]:
    reasons = [
        f"{name} is {value}, allowed: 1 and more"
        for name, value in dataclasses.asdict(model).items()
        if type(value) is int and name != "rotary" and value < 1
    ]
    if not reasons and model.heads % model.kv_heads:
        reasons.append(f"heads is {model.heads}, allowed: a multiple of kv_heads, {model.kv_heads}")
    if model.activation is not None and model.activation not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        reasons.append(f"activation is {model.activation!r}, allowed: {allowed}, or null")
    if model.weight_bits not in (None, 8, 4):
        reasons.append(f"weight_bits is {model.weight_bits}, allowed: 8, 4, or null")
    if model.rotary is not None and (model.rotary % 2 or not 0 <= model.rotary <= model.head_size):
        reasons.append(f"rotary is {model.rotary}, allowed: even, at most {model.head_size}")
    return reasons
