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
PATH = "tritune.integrations.vllm."


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    try:
        source = vllm_source()
    except OSError as error:
        pytest.skip(f"vLLM's sources are not here, and cannot be had: {error}")
    path = os.pathsep.join(map(str, [ROOT, ROOT / "src", source]))
    command = [sys.executable, "-m", "tests.integrations.vllm_program"]
    environment = {**os.environ, "PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


PROCESSES = ["here", "spawn", "fork", "forkserver", "cloudpickle"]


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_of_vllm_finds_the_backend(process: str, found: dict[str, Any]) -> None:
    answer = found["processes"][process]
    assert answer["path"] == PATH + "backend.TrituneAttentionBackend"
    assert answer["cpu_path"] == PATH + "cpu.TrituneCPUAttentionBackend"
    assert answer["names"] == ["TRITUNE", "CPU_ATTN"]
    assert "tritune" in answer["plugins"]


@pytest.mark.parametrize("process", PROCESSES[1:])
def test_the_choice_of_the_backend_reaches_a_process(process: str, found: dict[str, Any]) -> None:
    assert found["processes"][process]["sent"]


def test_a_cpu_that_triton_cannot_use_is_left_to_vllm(found: dict[str, Any]) -> None:
    assert found["without_triton"] == "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"


def test_vllm_is_told_what_the_backend_can_do(found: dict[str, Any]) -> None:
    assert found["reasons"]["good"] == []
    assert found["reasons"]["bad"] == [
        "head_size not supported",
        "block_size not supported",
        "MLA not supported",
    ]
    assert found["reasons"]["cache in another dtype"] == [
        "a float16 KV cache with a torch.bfloat16 model not supported"
    ]
    assert found["reasons"]["window that looks ahead"] == [
        "non-causal attention with a sliding window not supported"
    ]


def test_a_layer_that_it_cannot_compute_is_refused_on_a_cpu(found: dict[str, Any]) -> None:
    for message in found["refused"]:
        assert "set VLLM_PLUGINS= to leave attention to vLLM" in message


LIMITS = {"half": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize(
    "name",
    [
        "prefill", "decode", "mixed", "mixed, other layout", "mixed, one KV head", "half",
        "bfloat16", "window", "softcap", "sinks", "alibi", "not causal", "each its own",
        "fp8 cache", "fp8 e5m2 cache", "encoder", "encoder with window",
    ],
)  # fmt: skip
def test_it_computes_attention(name: str, found: dict[str, Any]) -> None:
    assert found["errors"][name] < LIMITS.get(name, 2e-6)


def test_a_run_without_a_batch_gives_zeros(found: dict[str, Any]) -> None:
    assert found["profiling"] == 0
