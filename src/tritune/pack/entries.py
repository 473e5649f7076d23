"""Entries of Triton's cache, one for each compiled kernel, as files that can be moved."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from tritune.errors import TrituneError

#: What a kernel's name and a binary's extension may be; Triton makes file names of them.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,149}")
_KEY = re.compile(r"[0-9a-f]{64}")
EXTENSIONS = ("cubin", "hsaco", "obj")


class PackError(TrituneError):
    """A pack cannot be used here."""


class CompiledKernel(Protocol):
    """The result of a compiler: see `tritune.screening.staged.Compiled`."""

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kernel(self) -> bytes: ...
    @property
    def extension(self) -> str: ...
    def metadata_text(self) -> str: ...


@dataclass(frozen=True)
class Entry:
    """One kernel: the key that Triton looks it up by, its file's name, and digests of its parts."""

    key: str
    name: str
    extension: str
    binary_sha256: str
    metadata_sha256: str

    def __post_init__(self) -> None:
        digests = (self.key, self.binary_sha256, self.metadata_sha256)
        good = all(isinstance(each, str) and _KEY.fullmatch(each) for each in digests)
        if not (good and isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise PackError(f"the pack has an entry that is none of Triton's: {self.name!r:.80}")
        if self.extension not in EXTENSIONS:
            allowed = ", ".join(EXTENSIONS)
            raise PackError(f"the pack has a binary {self.extension!r:.20}, allowed: {allowed}")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def keep_entry(folder: Path, compiled: CompiledKernel) -> str:
    """Write a compiled kernel into a folder, whole or not at all; return its key."""
    metadata = compiled.metadata_text().encode()
    digests = sha256(compiled.kernel), sha256(metadata)
    entry = Entry(compiled.key, compiled.name, compiled.extension, *digests)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / entry.binary_sha256, compiled.kernel)
    write_whole(folder / entry.metadata_sha256, metadata)
    # Last, for whoever finds it may rely on the others.
    write_whole(folder / f"{entry.key}.json", msgspec.json.encode(entry))
    return entry.key


def kept_entry(folder: Path, key: str) -> Entry | None:
    """Return the entry that `keep_entry` wrote; None if it did not get as far."""
    try:
        return msgspec.json.decode((folder / f"{key}.json").read_bytes(), type=Entry)
    except (OSError, ValueError):
        return None


def keep_keys(folder: Path, name: str, keys: Sequence[str]) -> None:
    """Write down which entries belong together."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.keys", json.dumps(list(keys)).encode())


def kept_keys(folder: Path, name: str) -> list[str] | None:
    """Return what `keep_keys` wrote; None if that or one of the entries is not there."""
    try:
        keys = [str(key) for key in json.loads((folder / f"{name}.keys").read_text())]
    except (OSError, ValueError, TypeError):
        return None
    return keys if all(kept_entry(folder.parent, key) for key in keys) else None


def install_entry(cache: Path, entry: Entry, binary: bytes, metadata: bytes) -> None:
    """Write a kernel where Triton's file cache looks for it."""
    # As in Triton: the key in letters and digits of one case.
    folder = cache / base64.b32encode(bytes.fromhex(entry.key)).decode().rstrip("=")
    folder.mkdir(parents=True, exist_ok=True)
    binary_path = folder / f"{entry.name}.{entry.extension}"
    metadata_path = folder / f"{entry.name}.json"
    write_whole(binary_path, binary)
    write_whole(metadata_path, metadata)
    group = {path.name: str(path) for path in (binary_path, metadata_path)}
    text = json.dumps({"child_paths": group})
    write_whole(folder / f"__grp__{entry.name}.json", text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all, also if others write it or this is stopped."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    part.write_bytes(data)
    os.replace(part, path)
