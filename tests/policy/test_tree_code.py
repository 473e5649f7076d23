"""The exported function says what the tree says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.policy.test_learned import fitted, rows_of
from tritune.errors import TrituneError
from tritune.policy.tree import Tree
from tritune.policy.tree_code import export_python


def test_the_exported_function_agrees_with_the_tree_on_a_thousand_problems() -> None:
    policy = fitted(rows_of(168, noise=0.2))
    assert isinstance(policy.chooser, Tree)
    module: dict[str, Any] = {}
    exec(export_python(policy), module)
    rng = random.Random(0)
    answers = []
    for _ in range(1000):
        fields = {
            "rows": rng.randrange(1, 20_000),
            "columns": rng.randrange(1, 2000),
            "dtype": rng.choice(["float32", "bfloat16", "float16"]),
            "wide": rng.random() < 0.5,
        }
        ranked = policy.chooser.ranked(fields)
        answers.append(module["choose"](fields))
        assert answers[-1] == (ranked[0].to_json() if ranked else None)
    assert len({str(answer) for answer in answers}) > 2


def test_the_source_can_be_read_and_states_what_to_expect() -> None:
    source = export_python(fitted(rows_of(84)))
    assert "if problem['wide']:" in source or "if not problem['wide']:" in source
    assert "problem['rows'] <= " in source
    assert "regret on held-out problems: mean 0.0%" in source
    assert max(map(len, source.splitlines())) <= 120


def test_without_a_tree_there_is_nothing_to_export() -> None:
    with pytest.raises(TrituneError, match="tune it for more"):
        export_python(fitted(rows_of(3)))
