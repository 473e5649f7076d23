"""The tutorial's blocks, run in their order in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Kind and content of each: a `python` block is a file, a `sh` block is run."""
    return _BLOCK.findall(TUTORIAL.read_text())


@pytest.mark.skipif(shutil.which("bash") is None, reason="the tutorial's commands need bash")
def test_every_block_works(tmp_path: Path) -> None:
    commands = os.path.dirname(sys.executable)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([commands, os.environ["PATH"]]),
        "TRITUNE_STORE": str(tmp_path / "store.sqlite"),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    ran = []
    for kind, content in blocks():
        if kind == "python":
            name = content.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(content)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", content],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{content}\n{done.stdout}{done.stderr}"
        ran.append(done.stdout)
    assert len(ran) == 6
    tuned, served, tested, searched, _, pinned = ran
    assert "softmax.kernel" in tuned
    assert "3 passed" in tested
    # What is served is what was tuned.
    assert [line for line in tuned.splitlines() if line.startswith("right")] == served.splitlines()
    assert searched == pinned
