"""Problems from text and from fields."""

from __future__ import annotations

import pytest

from tritune.kernels.attention import AttentionProblem
from tritune.workloads import WORKLOADS
from tritune.workloads.problems.parse import ProblemError


def test_text_becomes_a_problem_in_its_bucket():
    text = "batch=3 heads=32 group=4 queries=1000 head_size=64 dtype=bf16 causal=false"
    assert WORKLOADS["attention"].parse(text) == AttentionProblem(
        batch=4, heads=32, group=4, queries=1024, keys=1024, head_size=64, value_size=64,
        dtype="bfloat16", causal=False,
    )  # fmt: skip


def test_missing_fields_follow_from_given_ones():
    problem = WORKLOADS["paged_attention"].parse("dtype=float32 head_size=64")
    assert (problem.kv_dtype, problem.value_size) == ("float32", 64)
    assert WORKLOADS["rope"].parse("size=64").rotary == 64
    assert WORKLOADS["attention"].parse("").keys == 1024


@pytest.mark.parametrize(
    ("op", "text", "message"),
    [
        ("attention", "querys=4", "there is no querys .did you mean queries"),
        ("attention", "queries=many", "queries is 'many', allowed: a whole number"),
        ("attention", "causal=perhaps", "causal is 'perhaps', allowed: true or false"),
        ("attention", "causal", "'causal' is not of the form name=value"),
        ("attention", "batch=1 batch=2", "batch is given twice"),
        ("attention", "batch=0", "batch is 0, allowed: 1 and more"),
        (
            "attention",
            "dtype=float17",
            r"dtype is float17 \(did you mean float16\?\), allowed: float32, float16, bfloat16",
        ),
        ("attention", "packed=true", "packed is True, allowed: False"),
        ("attention", "heads=6 group=4", "group is 4, allowed: what divides 6 heads"),
        ("attention", "head_size=512", "head_size is 512, allowed: 1 to 256"),
        ("attention", "causal=false window=8", "window is 8, which goes with causal=true only"),
        ("attention_varlen", "mask=boolean", "mask is boolean, allowed: none"),
        ("paged_attention", "keys=8 page_size=16", "keys is 8, allowed: at least a page, 16"),
        ("paged_attention", "kv_dtype=float32", "kv_dtype is float32, allowed: float16, float8"),
        ("rms_norm", "adds=true", "adds is True, allowed: False"),
        ("rope", "rotary=256", "rotary is 256, allowed: even, and at most size, 128"),
        ("linear_quantized", "k=100", "k is 100, allowed: a multiple of the group, 128"),
        ("linear_quantized", "bits=5", "bits is 5, allowed: 8, 4"),
    ],
)
def test_what_is_wrong_is_said(op, text, message):
    with pytest.raises(ProblemError, match=message):
        WORKLOADS[op].parse(text)


def test_all_reasons_are_given_at_once():
    with pytest.raises(ProblemError, match=r"no querys.*no kees.*Fields: batch, heads"):
        WORKLOADS["attention"].parse("querys=1 kees=2")


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        ("attention", {"queries": 1000}, "queries=1000; the nearest has queries=1024"),
        ("attention", {"element_bytes": 4}, "element_bytes=4"),
        ("attention", {"colour": "red"}, "colour=red"),
        ("silu_mul", {"rows": 1, "columns": 1000}, "columns=1000; the nearest has columns=1024"),
        ("rms_norm", {"rows": "8"}, "rows is '8', allowed: a whole number"),
    ],
)
def test_fields_that_no_call_has_are_refused(op, change, message):
    workload = WORKLOADS[op]
    fields = {**workload.parse("").fields(), **change}
    with pytest.raises(ProblemError, match=message):
        workload.exactly(fields)


def test_fields_that_are_missing_are_refused():
    with pytest.raises(ProblemError, match="columns is missing"):
        WORKLOADS["rms_norm"].exactly({"rows": 8, "dtype": "float16", "adds": False})
