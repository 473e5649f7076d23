"""What a model's server meets, and how much of it is tuned."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.policy.stored import default_of, put
from tritune.store import Store
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.problems.models import PRESETS
from tritune.workloads.problems.tuned_share import Coverage, coverage_of, not_covered

CPU = torch.device("cpu")
LLAMA = PRESETS["llama-3-8b"]


def test_problems_with_a_winner_are_covered_and_the_others_are_named(tmp_path: Path) -> None:
    norm = WORKLOADS["rms_norm"]
    one = norm.problem(rows=1024, columns=4096, dtype="float32")
    put(tmp_path / "store.sqlite", {one: {default_of(one, norm.kernel): 1.0}}, norm.kernel)
    with Store(tmp_path / "store.sqlite") as store:
        found = coverage_of(LLAMA, store, CPU, ["rms_norm", "linear"])
    by_op = {(each.op, each.dtype): each for each in found}
    assert by_op.keys() == {
        (op, dtype) for op in ("rms_norm", "linear") for dtype in ("float32", "bfloat16")
    }
    assert by_op["rms_norm", "float32"].tuned == 1
    assert by_op["rms_norm", "bfloat16"].tuned == by_op["linear", "float32"].tuned == 0
    # From one row to thousands.
    assert by_op["rms_norm", "float32"].problems >= 12
    said = not_covered(LLAMA, found)
    assert said.startswith(f"1 of the {sum(each.problems for each in found)} problems")
    linear = sum(each.problems for each in found if each.op == "linear")
    assert f"linear {linear} of {linear}" in said


def test_where_all_is_tuned_nothing_is_said() -> None:
    assert not_covered(LLAMA, [Coverage("linear", "float32", 3, 3)]) == ""
