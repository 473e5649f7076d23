"""The stored hashes of generated code, and what changed since they were stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """Write hashes, one line for each entry."""
    lines: list[Any] = [f"  {json.dumps(e)}: {json.dumps(code[e])}" for e in sorted(code)]
    text = ",\n".join(lines)
    path.write_text(f'{{"version": {json.dumps(version)},\n "code": {{\n{text}\n}}}}\n')


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
