"""What `tools/size.py` counts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tools.size import code_lines, measure, repeated_lines

ROOT = Path(__file__).parents[2]


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    text = '"""One.\n\nTwo.\n"""\n\n# three\nx = 1  # four\n\ndef f():\n    "five"\n    return x\n'
    assert code_lines(text, ast.parse(text)) == ["x = 1  # four", "def f():", "return x"]


def test_runs_of_six_equal_lines_are_repeated() -> None:
    six, other = list("abcdef"), list("ghijkl")
    assert repeated_lines({"one": ["x", *six], "two": [*six, "y"]}) == 12
    assert repeated_lines({"one": ["x", *six[1:]], "two": six, "three": other}) == 0


def test_folders_add_up_to_the_whole() -> None:
    figures, folders, functions = measure(ROOT)
    assert folders["./"] == figures["lines"]
    assert folders["cpu/"] > folders["cpu/lower/"] > 0
    assert functions[0][0] >= figures["lines of a function, 90th percentile"]


def test_it_prints_a_column_for_each_checkout() -> None:
    command = [sys.executable, "tools/size.py", ".", "."]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert any(line.split()[:2] == ["code", "lines"] for line in printed.splitlines())
