"""Device code is counted as people would count it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import lines

PROGRAM = Path(lines.__file__)

KERNEL = '''"""A file's docstring is not device code."""
import triton
import triton.language as tl

LIMIT = 3


@triton.jit
def plain(x_ptr, BLOCK: tl.constexpr):
    """A docstring,

    of several lines.
    """
    # A comment.
    x = tl.load(x_ptr)  # a comment behind code

    tl.store(
        x_ptr,
        x,
    )


@triton.jit(do_not_specialize=["n"])
def with_options(
    x_ptr,
    n,
):
    tl.store(x_ptr, n)


def host():
    return plain
'''


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True
    )


def test_only_lines_with_code_of_device_functions_count() -> None:
    assert lines.count(KERNEL) == 7 + 6
    assert lines.count("def host():\n    return 1\n") == 0


def test_text_within_an_expression_is_code() -> None:
    source = '@triton.jit\ndef f(x):\n    tl.device_assert(x > 0, """two\n\nlines""")\n'
    assert lines.count(source) == 5


def test_attention_is_its_files_and_the_device_code_they_import(tmp_path: Path) -> None:
    kernel = "@triton.jit\ndef f(x):\n    return x\n"
    (tmp_path / "attention_one.py").write_text("from tritune.kernels.softmax import f\n" + kernel)
    (tmp_path / "softmax.py").write_text("from tritune.kernels.base import g\n" + kernel)
    (tmp_path / "base.py").write_text("from tritune.kernels.host import h\n" + kernel)
    (tmp_path / "host.py").write_text("def h(): pass\n")
    (tmp_path / "linear.py").write_text(kernel)
    result = lines.measure(tmp_path)
    names = ["attention_one.py", "base.py", "softmax.py"]
    assert result["files"] == dict.fromkeys([*names[:2], "linear.py", "softmax.py"], 3)
    assert result["total"] == 12
    assert result["attention"] == {"files": names, "lines": 9, "limit": 1000, "fits": True}


def test_too_much_attention_is_said_and_fails(tmp_path: Path) -> None:
    body = "    tl.store(x, 1)\n" * 999
    (tmp_path / "attention.py").write_text(f"@triton.jit\ndef f(x):\n{body}")
    finished = program("--folder", str(tmp_path))
    assert finished.returncode == 1
    assert "1,001 lines, OVER the limit of 1,000" in finished.stdout


def test_the_kernels_of_tritune_are_within_the_limit() -> None:
    finished = program("--json")
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["attention"]["fits"] and result["attention"]["lines"] > 0
    assert result["total"] == sum(result["files"].values())
    table = program().stdout
    assert "within the limit of 1,000" in table
    assert all(name in table for name in result["files"])


def test_a_folder_that_is_none_gets_one_clear_line(tmp_path: Path) -> None:
    finished = program("--folder", str(tmp_path / "missing"))
    assert finished.returncode == 2
    assert "is not a folder" in finished.stderr
