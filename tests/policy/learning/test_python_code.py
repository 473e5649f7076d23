"""The exported function says what the policy proposes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.policy.learning.test_learned import fitted, rows_of
from tritune.policy.learning.python_code import export_python


@pytest.mark.parametrize("count", [3, 168])
def test_the_exported_function_agrees_with_the_policy_on_a_thousand_problems(count: int) -> None:
    policy = fitted(rows_of(count, noise=0.2))
    module: dict[str, Any] = {}
    exec(export_python(policy), module)
    rng = random.Random(0)
    answers = []
    for _ in range(1000):
        fields = {
            "rows": rng.randrange(20_000),
            "columns": rng.randrange(1, 2000),
            "dtype": rng.choice(["float32", "bfloat16", "float16"]),
            "wide": rng.random() < 0.5,
        }
        ranked = policy.evidence.nearest(fields)
        answers.append(module["choose"](fields))
        assert answers[-1] == (ranked[0].to_json() if ranked else None)
    assert len({str(answer) for answer in answers}) > 2


def test_the_source_can_be_read_and_states_what_to_expect() -> None:
    source = export_python(fitted(rows_of(84)))
    assert "({'rows': 1, 'columns': 64, 'dtype': 'float32', 'wide': True}, C0)" in source
    assert "regret on held-out problems: mean " in source
    assert max(map(len, source.splitlines())) <= 120
