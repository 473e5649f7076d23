"""Recognise the format of a file from its contents, and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritune.store import export, winners_file
from tritune.store.contents import Contents
from tritune.store.errors import FormatError
from tritune.store.formats import aotriton, dejavu, spaces, t4, vllm_moe
from tritune.store.formats.foreign import claim, imported_run
from tritune.store.jsonfile import load

KNOWN = (
    "tritune's own JSON, triton-dejavu's cache.json, T4, vLLM's fused-MoE JSON, AOTriton's SQLite"
)

#: What `tritune db export --format` can write besides tritune's own JSON.
WRITERS: dict[str, Callable[[Contents, Path], list[Path]]] = {
    "dejavu": dejavu.write_all,
    "t4": spaces.write_all,
    "vllm-moe": vllm_moe.write_all,
}


def read(path: Path) -> tuple[str, Contents]:
    """Return the name of a file's format, and its contents; FormatError where it has none."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FormatError(f"{path} {what}: give a file, one of {KNOWN}")
    if aotriton.recognises(path):
        return "aotriton", aotriton.read(path)
    document = load(path)
    if isinstance(document, Mapping):
        if document.get("format") == export.FORMAT:
            return "tritune", export.from_document(document, path)
        if document.get("format") == winners_file.FORMAT:
            return "tritune winners", _from_winners(path, document)
        if dejavu.recognises(document):
            return "triton-dejavu", dejavu.read(path, document)
        if "results" in document:
            return "t4", spaces.from_recorded(t4.read(path), path)
        if vllm_moe.recognises(path):
            return "vllm-moe", vllm_moe.read(path, document)
    raise FormatError(f"{path} has no format that can be imported: expected {KNOWN}")


def files_in(path: Path) -> list[Path]:
    """Return the path itself, or the JSON files below a folder, such as triton-dejavu's caches."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.rglob("*.json") if each.is_file())
    if not found:
        raise FormatError(f"{path} is a folder without JSON files: expected {KNOWN}")
    return found


def _from_winners(path: Path, document: Any) -> Contents:
    known = winners_file.from_document(document, path)
    run = imported_run("tritune", {"file": path.name}, document)
    trials = [
        claim(winner.task, winner.config, run, [] if winner.ms is None else [winner.ms])
        for winner in known.winners
    ]
    return Contents(known.devices, (run,), trials=tuple(trials))
