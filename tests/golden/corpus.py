"""The corpus: kernels in Triton's IR, with the options that they are compiled with."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: With up to three pairs of brackets in each other.
_LOCATION = re.compile(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
PATH = Path(__file__).with_name("corpus.json.gz")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A kernel in Triton's IR."""

    name: str
    ttir: str
    #: The fields of `CodeOptions`.
    options: dict[str, Any]


def read() -> list[Entry]:
    entries = json.loads(gzip.decompress(PATH.read_bytes()))
    return [Entry(name, **fields) for name, fields in entries.items()]


def write(entries: Iterable[Entry]) -> None:
    """Write the entries, alike for the same entries."""
    document = {e.name: {"ttir": e.ttir, "options": e.options} for e in entries}
    text = json.dumps(document, indent=0, sort_keys=True)
    PATH.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def without_locations(ttir: str) -> str:
    """Return the IR without the files and lines that it was made from."""
    lines = (line for line in ttir.splitlines() if not line.startswith("#loc"))
    return "\n".join(_LOCATION.sub("", line) for line in lines) + "\n"
