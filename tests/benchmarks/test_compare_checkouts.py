"""The benchmark that runs two checkouts in turns."""

from __future__ import annotations

import json

import pytest
from benchmarks.compare_checkouts import compared

from tests.benchmarks.test_benchmarks import ROOT, run


def test_it_measures_a_checkout_beside_itself() -> None:
    problem = ("--problem", "attention", "queries=16 keys=16 heads=2 group=2")
    least = ("--rounds", "1", "--starts", "1", "--seconds", "0", "--parts", "start", "suite")
    printed = run("compare_checkouts.py", str(ROOT), *least, *problem, "--json")
    figures = json.loads(printed)["figures"]
    assert {"import tritune", "first launch"} < set(figures)
    (name,) = (name for name in figures if name.startswith("attention"))
    assert "queries=16" in name and "batch" not in name
    for row in figures.values():
        assert row["lowest"] <= row["ratio"] <= row["highest"]
        assert row["ratio"] == pytest.approx(row["new_seconds"] / row["base_seconds"])


def test_a_figure_is_worse_if_every_round_says_so() -> None:
    assert compared([1.0, 1.0, 1.0], [1.1, 1.2, 1.01], tolerance=0.05)["worse"]
    assert not compared([1.0, 1.0, 1.0], [1.1, 1.2, 0.9], tolerance=0.05)["worse"]
    assert not compared([1.0, 1.0, 1.0], [1.04, 1.04, 1.04], tolerance=0.05)["worse"]
    assert not compared([1.0], [2.0], tolerance=0.05)["worse"]
