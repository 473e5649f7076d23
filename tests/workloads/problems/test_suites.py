"""Suites hold problems that models really have, each once."""

from __future__ import annotations

import pytest

from tritune.errors import TrituneError
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.problems.suites import SUITES, suite

NAMES = sorted(SUITES)


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_of_a_suite_is_one_that_its_op_can_have(name: str) -> None:
    problems = suite(name)
    assert len(set(problems)) == len(problems) > 0
    for op, problem in problems:
        assert WORKLOADS[op].exactly(problem.fields()) == problem
        assert WORKLOADS[op].input_bytes(problem) < 2 * 10**9


def test_attention_is_measured_in_all_its_forms() -> None:
    problems = suite("attention")
    assert len(problems) >= 30
    fields = [problem.fields() for _, problem in problems]
    assert {each["dtype"] for each in fields} == {"float32", "bfloat16", "float16"}
    assert {each["head_size"] for each in fields} == {64, 128, 256}
    assert {op for op, _ in problems} == {"attention", "paged_attention"}
    assert {each["causal"] for each in fields} == {True, False}
    assert any(each["window"] for each in fields)
    assert any(each.get("sinks") for each in fields)


def test_all_holds_every_other_suite() -> None:
    everything = suite("all")
    assert all(entry in everything for name in NAMES for entry in suite(name))


def test_a_suite_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(TrituneError, match=r"no suite 'atention' \(did you mean"):
        suite("atention")
