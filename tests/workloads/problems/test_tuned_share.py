"""What a model's server meets, and how much of it is tuned."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.policy.stored import default_of, put
from tritune.store import Store
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.problems.models import PRESETS
from tritune.workloads.problems.tuned_share import count_tuned, describe_untuned

CPU = torch.device("cpu")
LLAMA = PRESETS["llama-3-8b"]


def test_problems_with_a_winner_are_covered_and_the_others_are_named(tmp_path: Path) -> None:
    norm = WORKLOADS["rms_norm"]
    one = norm.problem(rows=1024, columns=4096, dtype="float32")
    put(tmp_path / "store.sqlite", {one: {default_of(one, norm.kernel): 1.0}}, norm.kernel)
    with Store(tmp_path / "store.sqlite") as store:
        found = count_tuned(LLAMA, store, CPU, ["rms_norm", "linear"])
    assert found.keys() == {
        (op, dtype) for op in ("rms_norm", "linear") for dtype in ("float32", "bfloat16")
    }
    tuned, problems = found["rms_norm", "float32"]
    # From one row to thousands.
    assert tuned == 1 and problems >= 12
    assert found["rms_norm", "bfloat16"][0] == found["linear", "float32"][0] == 0
    said = describe_untuned(LLAMA, found)
    assert said.startswith(f"1 of the {sum(total for _, total in found.values())} problems")
    linear = sum(total for (op, _), (_, total) in found.items() if op == "linear")
    assert f"linear {linear} of {linear}" in said


def test_where_all_is_tuned_nothing_is_said() -> None:
    assert describe_untuned(LLAMA, {("linear", "float32"): (3, 3)}) == ""
