"""vLLM's own code takes tritune's attention backend, and gets what plain attention gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.vllm_source import vllm_source

ROOT = Path(__file__).parents[2]
PATH = "tritune.integrations.vllm.backend."


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    try:
        source = vllm_source()
    except OSError as error:
        pytest.skip(f"vLLM's sources are not here, and cannot be had: {error}")
    path = os.pathsep.join([str(ROOT), str(source)])
    command = [sys.executable, "-m", "tests.integrations.vllm_program"]
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_every_process_of_vllm_finds_the_backend(found: dict[str, Any]) -> None:
    assert len(found["processes"]) == 3
    for process in found["processes"]:
        assert process["path"] == PATH + "TrituneAttentionBackend"
        assert process["cpu_path"] == PATH + "TrituneCPUAttentionBackend"
        assert process["names"] == ["TRITUNE", "CPU_ATTN"]
        assert "tritune" in process["plugins"]


def test_vllm_is_told_what_the_backend_can_do(found: dict[str, Any]) -> None:
    assert found["reasons"]["good"] == []
    assert found["reasons"]["bad"] == [
        "head_size not supported",
        "block_size not supported",
        "MLA not supported",
    ]


LIMITS = {"half": 2e-3, "bfloat16": 2e-2, "fp8 cache": 0.1}


@pytest.mark.parametrize(
    "name",
    [
        "prefill", "decode", "mixed", "mixed, other layout", "mixed, one KV head", "half",
        "bfloat16", "window", "softcap", "sinks", "alibi", "not causal", "each its own",
        "fp8 cache", "encoder", "encoder with window",
    ],
)  # fmt: skip
def test_it_computes_attention(name: str, found: dict[str, Any]) -> None:
    assert found["errors"][name] < LIMITS.get(name, 2e-6)


def test_a_run_without_a_batch_gives_zeros(found: dict[str, Any]) -> None:
    assert found["profiling"] == 0
