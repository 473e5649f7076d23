"""Configs: what makes two of them the same, and how they travel."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest

from tritune.space import Config, SpaceError


def test_the_order_of_names_does_not_matter() -> None:
    one = Config.of(BLOCK=64, num_warps=4)
    other = Config.of(num_warps=4, BLOCK=64)
    assert one == other
    assert hash(one) == hash(other)
    assert one.key == other.key


@pytest.mark.parametrize(("a", "b"), [(1, True), (0, False), (1, 1.0), (1, "1"), (True, "True")])
def test_values_of_different_types_are_different(a: object, b: object) -> None:
    one, other = Config.from_json({"x": a}), Config.from_json({"x": b})
    assert one != other
    assert one.key != other.key
    assert len({one, other}) == 2


def test_json_and_back_gives_an_equal_config() -> None:
    config = Config.of(BLOCK=64, PEEL=True, scale=0.5, METHOD="dot")
    again = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.key == config.key
    assert again.as_kwargs() == {"BLOCK": 64, "PEEL": True, "scale": 0.5, "METHOD": "dot"}


def test_a_key_is_the_same_in_every_process() -> None:
    program = "from tritune.space import Config; print(Config.of(b='x', a=True, c=3).key)"
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert keys == {Config.of(a=True, b="x", c=3).key}


def test_a_pickled_config_leaves_its_hash_behind() -> None:
    config = Config.of(METHOD="dot", BLOCK=64)
    bare = pickle.dumps(config)
    _ = hash(config), config.key, config["BLOCK"]
    assert pickle.dumps(config) == bare
    assert pickle.loads(bare) == config


def test_keyword_arguments_are_a_copy() -> None:
    config = Config.of(BLOCK=64)
    config.as_kwargs()["BLOCK"] = 1
    assert config["BLOCK"] == 64


@pytest.mark.parametrize("value", [None, [1], (1, 2), float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused_by_name(value: object) -> None:
    with pytest.raises(SpaceError, match="BLOCK="):
        Config.from_json({"BLOCK": value})
