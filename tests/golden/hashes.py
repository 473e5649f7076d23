"""The stored hashes of generated code, and what changed since they were stored."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tritune.cpu import codegen, options
from tritune.cpu.ttir import passes

#: Of the CPU backend's code.
LOWERED = Path(__file__).with_name("hashes.json")
#: Of GPUs' code.
BINARIES = Path(__file__).with_name("gpu_hashes.json")

#: What is generated of each entry, by target.
Summaries = Mapping[str, Mapping[str, str]]


def read(path: Path) -> tuple[str, Summaries]:
    """Return the version that the hashes belong to, and the hashes."""
    stored = json.loads(path.read_text())
    return stored["version"], stored["code"]


def write(path: Path, version: str, code: Summaries) -> None:
    """Write hashes, one line for each entry; those of CPUs with the digest of the passes."""
    lines: list[Any] = [f"  {json.dumps(e)}: {json.dumps(code[e])}" for e in sorted(code)]
    text = ",\n".join(lines)
    of_passes = f' "passes": {json.dumps(passes_digest())},\n' if path == LOWERED else ""
    start = f'{{"version": {json.dumps(version)},\n{of_passes}'
    path.write_text(f'{start} "code": {{\n{text}\n}}}}\n')


def stored_passes() -> str:
    """Return the digest of the passes that was stored."""
    return str(json.loads(LOWERED.read_text())["passes"])


def passes_digest() -> str:
    """Digest what changes code before and after the lowering: passes, LLVM's options, defaults.

    The corpus does not pass through these. Comments and docstrings do not count.
    """
    digest = hashlib.sha256()
    for module in (passes, options, codegen):
        digest.update(_code(module).encode())
    return digest.hexdigest()[:16]


def _code(module: ModuleType) -> str:
    # By lines: what ast prints differs between versions of Python.
    text = Path(str(module.__file__)).read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines[first.lineno - 1 : first.end_lineno] = [""] * (
                first.end_lineno - first.lineno + 1
            )
    stripped = (line.split("  # ")[0].rstrip() for line in lines)
    return "\n".join(line for line in stripped if line and line.lstrip()[0] != "#")


def changes(before: Summaries, now: Summaries) -> list[str]:
    """Return a line for each entry and target with other code than before."""
    found = []
    for entry in sorted({*before, *now}):
        old, new = before.get(entry, {}), now.get(entry, {})
        for target in sorted({*old, *new}):
            was, is_ = old.get(target, "none"), new.get(target, "none")
            if was != is_:
                found.append(f"{entry} on {target}: {was} -> {is_}")
    return found
