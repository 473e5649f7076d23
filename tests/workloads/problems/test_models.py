"""Models: presets, and files of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tritune.workloads.problems.models import PRESETS, Model, ModelError, load_model

OWN = {"hidden": 512, "heads": 8, "kv_heads": 2, "head_size": 64, "mlp": 2048, "vocab": 1000}


def written(folder: Path, values: object, name: str = "own.yaml") -> str:
    path = folder / name
    dump = json.dumps if name.endswith(".json") else yaml.safe_dump
    path.write_text(dump(values))
    return str(path)


@pytest.mark.parametrize(
    ("name", "group", "windows"),
    [
        ("llama-3-8b", 4, (None,)),
        ("qwen3-8b", 4, (None,)),
        ("gemma-3-4b", 2, (None, 1024)),
        ("gpt-oss-20b", 8, (None, 128)),
        ("mistral-7b", 4, (4096,)),
    ],
)
def test_presets_are_found_by_name(name, group, windows):
    model = load_model(name)
    assert (model.name, model.group, model.windows) == (name, group, windows)


def test_presets_have_whole_groups():
    assert all(model.heads % model.kv_heads == 0 for model in PRESETS.values())


@pytest.mark.parametrize("name", ["own.yaml", "own.yml", "own.json"])
def test_a_file_of_ones_own(tmp_path, name):
    path = written(tmp_path, {**OWN, "window": 256, "activation": "gelu_tanh"}, name)
    assert load_model(path) == Model(
        "own", 512, 8, 2, 64, 2048, 1000, activation="gelu_tanh", window=256
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": None}, "hidden is None, allowed: a whole number"),
        ({"heads": 6, "kv_heads": 4}, "heads is 6, allowed: a multiple of kv_heads, 4"),
        ({"hiden": 512}, "there is no hiden .did you mean hidden"),
        ({"mlp": 0}, "mlp is 0, allowed: 1 and more"),
        ({"vocab": True}, "vocab is True, allowed: a whole number"),
        ({"window": "wide"}, "window is 'wide', allowed: a whole number or null"),
        ({"activation": "swish"}, "activation is 'swish', allowed: silu, gelu_tanh, gelu, or null"),
        ({"weight_bits": 3}, "weight_bits is 3, allowed: 8, 4, or null"),
        ({"rotary": 63}, "rotary is 63, allowed: even, at most 64"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path, change, message):
    with pytest.raises(ModelError, match=message):
        load_model(written(tmp_path, {**OWN, **change}))


def test_missing_fields_and_the_presets_are_named(tmp_path):
    values = {name: value for name, value in OWN.items() if name not in ("mlp", "vocab")}
    with pytest.raises(ModelError, match=r"mlp is missing; vocab is missing.*llama-3-8b"):
        load_model(written(tmp_path, values))


@pytest.mark.parametrize("text", ["", "- 1", "{hidden: ["])
def test_a_file_without_fields_is_refused(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"own\.yaml (holds no fields|cannot be read)"):
        load_model(str(path))


def test_a_misspelt_preset_is_told_with_the_nearest():
    with pytest.raises(ModelError, match=r"lama-3-8b.*did you mean llama-3-8b.*gpt-oss-20b"):
        load_model("lama-3-8b")


def test_a_missing_file_is_told():
    with pytest.raises(ModelError, match=r"there is no file models/own\.yaml"):
        load_model("models/own.yaml")
