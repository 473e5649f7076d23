"""Each example runs as its documentation says, and checks its own answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# Sizes that no block divides, so that the masks are needed.
ARGUMENTS = {
    "vector_add.py": ["--elements", "5000"],
    "softmax.py": ["--rows", "7", "--columns", "100"],
    "matmul.py": ["--size", "70"],
    "llama.py": [
        *("--layers", "2", "--hidden", "64", "--heads", "4", "--intermediate", "96"),
        *("--vocabulary", "100", "--page", "3", "--prompt", "13", "--generate", "3"),
        *("--kv-heads", "2", "--prefill", "21", "--context", "50", "--dtype", "fp32"),
    ],
    "attention.py": ["--heads", "2", "--tokens", "70", "--head-size", "16", "--seconds", "0"],
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_succeeds_and_says_what_it_did(name: str) -> None:
    finished = run(name, *ARGUMENTS[name])
    assert finished.returncode == 0, finished.stderr
    assert " on cpu: " in finished.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)
