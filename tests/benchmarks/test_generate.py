"""benchmarks/generate.py runs an unchanged program both ways, and compares what it generates."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.test_benchmarks import ENVIRONMENT, in_json


@pytest.mark.skipif(sys.version_info < (3, 11), reason="transformers needs Python 3.11")
def test_generate_compares_tritune_run_with_plain_python() -> None:
    size = ("--context", "64", "--tokens", "4", "--layers", "1", "--hidden", "64")
    result = in_json("generate.py", *size, "--dtype", "float32")
    assert set(result["environment"]) == ENVIRONMENT
    assert set(result["milliseconds_per_token"]) == {"python", "tritune run"}
    times = result["milliseconds_per_token"]
    assert result["ratio"] == pytest.approx(times["python"] / times["tritune run"])
    assert result["same_tokens"] == result["new_tokens"] == 4
