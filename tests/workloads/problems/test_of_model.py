"""The problems of models."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from tritune import TrituneError
from tritune.kernels.kernel import Problem
from tritune.workloads import WORKLOADS
from tritune.workloads.problems.models import PRESETS, Model, load_model
from tritune.workloads.problems.of_model import EFFORTS, INPUT_BYTES, problems_of


@functools.cache
def full(model: Model) -> list[tuple[str, Problem]]:
    return problems_of(model, effort="full", dtype="bfloat16")


every_model = pytest.mark.parametrize("model", PRESETS.values(), ids=PRESETS)
LLAMA = load_model("llama-3-8b")


@every_model
def test_problems_are_valid_and_fit_into_the_memory_of_a_cpu(model):
    for name, problem in full(model):
        workload = WORKLOADS[name]
        assert workload.exactly(problem.fields()) == problem
        assert workload.input_bytes(problem) <= INPUT_BYTES["cpu"]
        work = workload.work(problem)
        assert min(work.flops, work.read_bytes, work.written_bytes) > 0


@every_model
def test_more_effort_adds_problems_and_keeps_the_order(model):
    quick, normal = (problems_of(model, effort=effort, dtype="bfloat16") for effort in EFFORTS[:2])
    assert normal[: len(quick)] == quick and full(model)[: len(normal)] == normal
    assert 5 <= len(quick) <= 15
    assert 25 <= len(normal) <= 50
    assert len(full(model)) >= 100


@every_model
def test_no_problem_comes_twice(model):
    problems = full(model)
    assert len(set(problems)) == len(problems)


@every_model
def test_spaces_have_configs_for_the_problems_and_the_default_is_one(model):
    for name, problem in problems_of(model, effort="quick"):
        kernel = WORKLOADS[name].kernel
        default = kernel.default(problem, "cpu", "host")
        kernel.space.check(default, "cpu", "host", problem.fields())


def test_a_model_has_the_problems_of_the_ops_it_uses():
    def ops(name: str) -> set[str]:
        return {op for op, _ in problems_of(load_model(name))}

    assert {"attention", "paged_attention", "linear", "silu_mul", "rope"} < ops("llama-3-8b")
    assert "linear_quantized" not in ops("llama-3-8b")
    assert "gelu_mul" in ops("gemma-3-4b") and "silu_mul" not in ops("gemma-3-4b")
    assert not {"gelu_mul", "silu_mul"} & ops("gpt-oss-20b")


def test_only_what_is_asked_for():
    problems = problems_of(LLAMA, ["rope", "linear_quantized"], dtype="float16")
    assert {name for name, _ in problems} == {"rope", "linear_quantized"}
    with pytest.raises(TrituneError, match=r"no op 'ropes' .did you mean rope"):
        problems_of(LLAMA, ["ropes"])


def test_quantized_models_have_quantized_layers():
    problems = problems_of(dataclasses.replace(LLAMA, weight_bits=8))
    layers = [problem for name, problem in problems if name == "linear_quantized"]
    assert layers and all(problem.bits == 8 for problem in layers)
    assert "linear" not in {name for name, _ in problems}


def test_groups_of_quantized_layers_divide_them():
    problems = problems_of(load_model("gpt-oss-20b"), ["linear_quantized"], effort="full")
    assert {p.group for _, p in problems if p.k == 2880} == {64}


def test_layers_with_and_without_a_window_have_problems_of_their_own():
    problems = [p for _, p in problems_of(load_model("gpt-oss-20b"), ["attention"])]
    assert {problem.window for problem in problems} == {0, 128}
    paged = [p for _, p in problems_of(load_model("gpt-oss-20b"), ["paged_attention"])]
    assert {problem.window for problem in paged} == {False, True}
    assert all(problem.sinks for problem in paged)


def test_a_window_that_hides_nothing_is_none():
    mistral = load_model("mistral-7b")
    problems = [p for _, p in problems_of(mistral, ["attention"], effort="full")]
    assert {problem.window for problem in problems if problem.keys <= 4096} == {0}
    assert {problem.window for problem in problems if problem.keys > 4096} == {4096}


def test_the_dtype_is_that_of_the_device_unless_given():
    assert {p.dtype for _, p in problems_of(LLAMA)} == {"float32"}
    assert {p.dtype for _, p in problems_of(LLAMA, device="cuda")} == {"bfloat16"}
    assert {p.dtype for _, p in problems_of(LLAMA, dtype="float16")} == {"float16"}


def test_an_unknown_effort_is_told():
    with pytest.raises(TrituneError, match="effort 'lots', allowed: quick, normal, full"):
        problems_of(LLAMA, effort="lots")
