"""Every benchmark runs, checks its results and reports them; what it measures is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.timing import LEAST_ROUNDS, compare, interleaved, require_accurate, table

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"cpu", "vector_bits", "threads", "torch", "triton", "tritune"}


def run(name: str, *arguments: str) -> str:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *arguments],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def in_json(name: str, *arguments: str) -> dict[str, Any]:
    return json.loads(run(name, *arguments, "--seconds", "0", "--json"))


def check_comparison(comparison: dict[str, Any], configs: int, rate: str) -> None:
    assert len(comparison["configs"]) == configs
    for row in (*comparison["configs"].values(), comparison["torch"]):
        assert 0 < row["fastest_seconds"] <= row["median_seconds"] <= row["slowest_seconds"]
        assert row["rounds"] == LEAST_ROUNDS
        assert row[rate] > 0
    assert comparison["torch"]["ratio"] == 1
    assert comparison["ratio"] == comparison["configs"][comparison["best"]]["ratio"]
    assert comparison["ratio"] == max(row["ratio"] for row in comparison["configs"].values())


def test_matmul_compares_every_tile_with_torch() -> None:
    result = in_json(
        "matmul.py", "--size", "48", "--dtype", "bf16", "--tiles", "16x16x16", "16x32x16"
    )
    assert (result["size"], result["dtype"]) == (48, "bf16")
    assert set(result["configs"]) == {"16x16x16", "16x32x16"}
    assert set(result["environment"]) == ENVIRONMENT
    check_comparison(result, 2, "gflop_per_second")


def test_quantized_compares_weights_of_few_bits_with_bf16() -> None:
    result = in_json("quantized.py", "--size", "128", "--layers", "2")
    assert (result["size"], result["layers"]) == (128, 2)
    assert set(result["kinds"]) == {"bf16", "int8", "int4"}
    assert set(result["environment"]) == ENVIRONMENT
    for row in result["kinds"].values():
        assert row["ratio"] == result["kinds"]["bf16"]["median_seconds"] / row["median_seconds"]


def test_streaming_compares_every_size_of_add_and_softmax_with_torch() -> None:
    result = in_json(
        "streaming.py", "--elements", "1000", "2000", "--rows", "9", "--columns", "100"
    )
    kernels = [comparison["kernel"] for comparison in result["comparisons"]]
    assert kernels == ["vector add", "vector add", "softmax"]
    for comparison in result["comparisons"]:
        check_comparison(comparison, 3, "gb_per_second")


SMALL_ATTENTION = ("--heads", "2", "--tokens", "64", "--head-size", "16")


def test_attention_is_compared_with_the_interpreter() -> None:
    result = in_json("attention.py", *SMALL_ATTENTION, "--speed", "--blocks", "32x16")
    assert "first_call" not in result
    config = result["speed"]["configs"]["32x16"]
    assert config["interpreter"]["measured_heads"] == 2
    assert not config["interpreter"]["scaled"]
    assert config["factor"] == config["interpreter"]["seconds"] / config["compiled_seconds"]


def test_an_interpreter_that_would_take_too_long_runs_one_head_and_says_so() -> None:
    limits = ("--seconds", "0", "--interpreter-limit", "0")
    arguments = (*SMALL_ATTENTION, "--speed", "--blocks", "32x32", *limits)
    assert "SCALED: 1 of 2 heads ran" in run("attention.py", *arguments)


def test_attention_is_compiled_in_one_process_and_loaded_in_the_next() -> None:
    result = in_json("attention.py", *SMALL_ATTENTION, "--compile", "--pairs", "1")
    first_call = result["first_call"]
    assert "speed" not in result
    # A cache that was not empty, or not warm, ends the program.
    assert first_call["empty_cache"]["stage_seconds"].keys() >= {"ttir", "llir", "obj"}
    assert first_call["warm_cache"]["stage_seconds"] == {}
    for times in (first_call["empty_cache"], first_call["warm_cache"]):
        assert times["first_call_seconds"] > times["compile_seconds"] > 0
        assert times["not_counted_seconds"]["import torch"] > 0


def test_the_cost_of_a_launch_is_printed() -> None:
    result = json.loads(run("launch.py", "--launches", "10", "--json"))
    assert result["launches"] == 10
    assert "median_us" in result["total"]


def test_help_says_how_it_measures() -> None:
    assert "pairs of fresh processes" in run("attention.py", "--help")


def test_a_tile_that_triton_cannot_have_is_a_clear_error() -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "matmul.py"), "--tiles", "48x16x16"],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 2
    assert "must be powers of two" in finished.stderr


def test_candidates_take_turns_after_a_warm_up() -> None:
    order: list[str] = []
    candidates = {name: lambda name=name: order.append(name) for name in "ab"}
    timings = interleaved(candidates, budget_seconds=0)
    assert order == ["a", "b"] * (1 + LEAST_ROUNDS)
    assert timings["a"].rounds == LEAST_ROUNDS


def test_the_ratio_is_our_speed_over_that_of_torch() -> None:
    found = compare({"one": lambda: None}, lambda: None, 0, {"gb_per_second": 3.0})
    seconds = {name: found["configs"]["one"][name] for name in ("median_seconds", "gb_per_second")}
    assert seconds["gb_per_second"] == 3.0 / seconds["median_seconds"]
    assert found["ratio"] == found["torch"]["median_seconds"] / seconds["median_seconds"]


@pytest.mark.parametrize("wrong", [0.5, float("nan")])
def test_a_wrong_result_ends_a_benchmark(wrong: float) -> None:
    right = torch.ones(8)
    require_accurate("it", right, right, right.double())
    with pytest.raises(SystemExit, match="it is wrong"):
        require_accurate("it", torch.full((8,), wrong), right, right.double())


def test_a_table_aligns_names_left_and_numbers_right() -> None:
    assert table(("", "ms"), [("one", "1.5"), ("b", "10.5")]) == (
        "        ms\none    1.5\nb     10.5"
    )


def test_llama_compares_decoding_and_prefill_with_transformers() -> None:
    result = in_json(
        "llama.py", "--size", "tiny", "--prefill", "24", "--context", "40", "--tokens", "4"
    )
    assert result["greedy"] == {"prompt": 64, "tokens": 4, "agree": 4}
    for name in ("decode", "prefill"):
        seconds = result[name]["seconds"]
        assert result[name]["ratio"] == seconds["transformers"] / seconds["tritune"] > 0


def test_scaling_says_how_cost_grows_with_work() -> None:
    result = in_json("scaling.py", "--first", "64", "--last", "256", "--heads", "1")
    for name in ("prefill", "decode"):
        rows = result[name]["rows"]
        assert [row["size"] for row in rows] == [64, 91, 128, 181, 256]
        steps = [row["step"] for row in rows[1:]]
        assert result[name]["largest_step"] == max(steps) > 0
    prefill = result["prefill"]["rows"]
    grown = (prefill[1]["milliseconds"] / prefill[0]["milliseconds"]) / ((91 * 92) / (64 * 65))
    assert prefill[1]["step"] == pytest.approx(grown)
