"""Imports between the rooms of the package point one way, as docs/architecture.md draws it.

Lazy imports, imports for type checkers and modules that are named in strings count too.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src/tritune"
ROOMS = {path.stem for path in SRC.iterdir() if "__" not in path.stem} - {"py"}
#: A module that is named in a string, and an import in the source of a child process.
NAMED = re.compile(
    rf"\A(tritune\.(?:{'|'.join(ROOMS)})\b[\w.:]*)\Z|^\s*(?:from|import) (tritune[\w.]*)",
    re.MULTILINE,
)
#: Where the rule is broken still: a file's name, and the room that it must not import.
KNOWN = {
    "compiler.py imports _version",
    "device.py imports _version",
}


def _drawn() -> set[tuple[str, str]]:
    """Return which room may import which: on a line, every room those to the right of it."""
    text = (ROOT / "docs/architecture.md").read_text()
    drawing = re.search(r"^Imports point one way.*?```\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert drawing
    pairs = set()
    for line in drawing[1].splitlines():
        groups = [re.findall(r"\w+", group) for group in line.split("->")]
        for left, right in itertools.combinations(groups, 2):
            pairs |= set(itertools.product(left, right))
    return pairs


def _imported(path: Path) -> Iterator[str]:
    """Yield what a file imports or names in a string, as "package.module.name"."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(SRC.parent).parts[: -node.level]) + "."
            module = f"{package if node.level else ''}{node.module or ''}".strip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from map("".join, NAMED.findall(node.value))


def _rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports; "tritune" for the package's public names."""
    names = [re.split("[.:]", name) for name in _imported(path)]
    return {(n[1] if n[1:] and n[1] in ROOMS else n[0]) for n in names if n[0] == "tritune"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_what_is_drawn_to_the_right_of_it(room: str) -> None:
    allowed = {room} | {right for left, right in _drawn() if left == room}
    paths = [SRC / f"{room}.py", *(SRC / room).rglob("*.py")]
    # What `tritune new` writes is a user's program.
    files = [path for path in paths if path.exists() and "new_kernel" not in path.parts]
    found = {f"{path.name} imports {other}" for path in files for other in _rooms(path) - allowed}
    assert found - KNOWN == set()


def test_code_is_generated_without_torch_and_triton() -> None:
    found = set()
    for path in (SRC / "cpu/lower").rglob("*.py"):
        packages = {name.split(".")[0] for name in _imported(path)}
        found |= {f"{path.name} imports {name}" for name in packages & {"torch", "triton"}}
    assert found - KNOWN == set()


def test_the_drawing_has_every_room_and_no_circle() -> None:
    drawn = _drawn()
    assert {room for pair in drawn for room in pair} == ROOMS
    assert not any((right, left) in drawn for left, right in drawn)
