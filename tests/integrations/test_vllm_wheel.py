"""vLLM's wheel for CPUs generates with tritune what it generates without.

`make test-vllm` runs this, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.vllm_model import prompts, save_model
from tests.integrations.vllm_wheel_program import OPTIONS, TOKENS

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here", allow_module_level=True)

# Six processes start, each of which imports vLLM.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.integrations.vllm_wheel_program"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "src"])),
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
#: Neither the plug-in nor the Triton backend.
WITHOUT = {"VLLM_PLUGINS": "", "TRITON_BACKENDS_IN_TREE": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    save_model(folder)
    return folder


class Generation:
    """A run of vllm_wheel_program."""

    def __init__(self, folder: Path, name: str, cases: list[str], **environment: str) -> None:
        self.answer = folder / f"{name}.json"
        self.process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(folder), str(self.answer), *cases],
            cwd=ROOT,
            env={**ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> tuple[dict[str, Any], str]:
        """What each case gave, and what vLLM logged."""
        log, _ = self.process.communicate()
        assert self.process.returncode == 0, log
        return json.loads(self.answer.read_text()), log


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What vLLM generates without tritune and with it."""
    without = Generation(folder, "without", ["plain", "lora"], **WITHOUT)
    runs = Generation(folder, "with", ["v2 spawned", "v1", "v1 lora", "v2 lora"])
    expected, _ = without.finish()
    cases, log = runs.finish()
    return {"without": expected, "with": cases, "log": log}


def test_what_is_compared_with_has_nothing_of_tritune(found: dict[str, Any]) -> None:
    for case in found["without"].values():
        assert not case["tritune"] and not case["triton"] and not case["v2"]
        assert case["attention"] == ["vllm.v1.attention.backends.cpu_attn"]


@pytest.mark.parametrize("case", ["v1", "v1 lora", "v2 lora"])
def test_the_plugin_computes_attention(case: str, found: dict[str, Any]) -> None:
    assert found["with"][case]["attention"] == ["tritune.integrations.vllm.cpu"]


@pytest.mark.parametrize("case", ["v2 spawned", "v1", "v1 lora", "v2 lora"])
def test_greedy_tokens_are_those_of_vllm_alone(case: str, found: dict[str, Any]) -> None:
    same = "lora" if "lora" in case else "plain"
    assert found["with"][case]["v2"] == ("v2" in case)
    assert found["with"][case]["tokens"] == found["without"][same]["tokens"]


@pytest.mark.parametrize("case", ["v2 spawned", "v1"])
def test_sampling_from_the_likeliest_token_only_is_greedy(case: str, found: dict[str, Any]) -> None:
    assert found["with"][case]["best of one"] == found["with"][case]["tokens"]


def test_the_adapter_changes_what_is_generated(found: dict[str, Any]) -> None:
    assert found["without"]["plain"]["tokens"] != found["without"]["lora"]["tokens"]


def test_the_log_says_what_is_replaced_and_how_to_undo_it(found: dict[str, Any]) -> None:
    line = next(line for line in found["log"].splitlines() if "tritune computes" in line)
    assert "INFO" in line
    assert "VLLM_PLUGINS=" in line and "VLLM_USE_V2_MODEL_RUNNER=0" in line


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Where a server listens that was started as docs/vllm.md says, with an adapter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    options = {name: value for name, value in OPTIONS.items() if value is not True}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(folder / "model"), "--served-model-name", "plain",
        "--host", "127.0.0.1", "--port", str(port), "--attention-backend", "TRITUNE",
        "--enforce-eager", "--enable-lora", "--lora-modules", f"lora={folder / 'adapter'}",
        *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        while not answers(port):
            assert server.poll() is None, log.read_text()
            time.sleep(0.2)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its engine and its worker, too
        server.wait()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("model", ["plain", "lora"])
def test_a_server_with_spawned_workers_gives_the_same(
    model: str, port: int, found: dict[str, Any]
) -> None:
    request = {
        "model": model, "prompt": prompts(), "temperature": 0, "max_tokens": TOKENS,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(
        "POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"}
    )
    answer = json.loads(connection.getresponse().read())
    tokens = [choice["token_ids"] for choice in answer["choices"]]
    assert tokens == found["without"][model]["tokens"]
