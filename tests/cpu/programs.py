"""Running a small program in a process of its own, for what cannot be tested in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(
    folder: Path, source: str, *, timeout_s: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `source` from a file, because Triton reads the source of kernels; return its outcome."""
    with start(folder, source, **environment) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The program leads a process group, so that its forked children end with it.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(folder: Path, source: str, **environment: str) -> subprocess.Popen[str]:
    """Start `source` as a program and return its process."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source))
    search = [environment.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def check(result: subprocess.CompletedProcess[str]) -> str:
    """The program's output; its errors are shown where it failed."""
    assert result.returncode == 0, result.stderr
    return result.stdout
