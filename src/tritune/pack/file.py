"""Packs as files: a zip archive whose members are named by their own digests.

`contents.json` lists sections and entries; every other member is `files/SHA256`. The archive's
comment is the digest of everything before it, so a change of any byte is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from tritune.pack.contents import Section, from_json, to_json
from tritune.pack.entries import Entry, PackError, install_entry, sha256

CONTENTS = "contents.json"
_FILE = re.compile(r"files/([0-9a-f]{64})")
_COMMENT = "tritune pack sha256 "
_COMMENT_BYTES = len(_COMMENT) + 64

#: More than any pack has that was not made to do harm.
MOST_FILE_BYTES = 8 << 30
MOST_MEMBERS = 500_000
MOST_MEMBER_BYTES = 64 << 20
MOST_CONTENTS_BYTES = 1 << 30

#: What unpacking and parsing raise for bytes that somebody made up. RuntimeError: members that are
#: encrypted or packed by a method that nobody has, and JSON that is nested too deeply.
_UNREADABLE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)

#: The same contents shall give the same file.
_DATE = (1980, 1, 1, 0, 0, 0)


def write_pack(
    path: Path,
    sections: Sequence[Section],
    entries: Sequence[Entry],
    content: Callable[[str], bytes],
) -> None:
    """Write a pack, whole or not at all; `content` gives the bytes that have a digest."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, CONTENTS, json.dumps(to_json(sections, entries)).encode())
            digests = (d for e in entries for d in (e.binary_sha256, e.metadata_sha256))
            for digest in dict.fromkeys(digests):
                _add(archive, f"files/{digest}", content(digest))
            archive.comment = b" " * _COMMENT_BYTES
        with part.open("rb+") as file:
            digest = _digest(file, part.stat().st_size - _COMMENT_BYTES)
            file.write((_COMMENT + digest).encode())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Pack:
    """A pack that was opened: everything in it has been checked, nothing has been written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise PackError(f"the pack {path} cannot be read: {error.strerror}") from None
        try:
            self._archive = zipfile.ZipFile(self._file)
            self._check_members()
            self._check_digest()
            document = json.loads(self._read(CONTENTS, MOST_CONTENTS_BYTES))
            self.sections, self.entries = from_json(document)
            self._check_files()
        except _UNREADABLE as error:
            self._file.close()
            raise PackError(f"{path} is damaged, or no pack: {error}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def install(self, keys: Sequence[str], cache: Path) -> None:
        """Put kernels into a folder that Triton uses as its cache."""
        for key in keys:
            entry = self.entries[key]
            binary, metadata = (
                self._content(digest) for digest in (entry.binary_sha256, entry.metadata_sha256)
            )
            install_entry(cache, entry, binary, metadata)

    def _check_members(self) -> None:
        """Raise PackError for members that packs do not have, that are there twice or too large."""
        size = os.fstat(self._file.fileno()).st_size
        members = self._archive.infolist()
        if size > MOST_FILE_BYTES or len(members) > MOST_MEMBERS:
            raise PackError(f"{self.path} is too large for a pack: {size} bytes")
        names = set()
        for member in members:
            name = member.filename
            if name != CONTENTS and not _FILE.fullmatch(name):
                raise PackError(
                    f"{self.path} has a member {name!r:.100}, allowed: {CONTENTS} and files/SHA256"
                )
            most = MOST_CONTENTS_BYTES if name == CONTENTS else MOST_MEMBER_BYTES
            if member.file_size > most:
                raise PackError(f"{self.path} has a member of {member.file_size} bytes: {name}")
            if name in names:
                raise PackError(f"{self.path} has the member {name} twice")
            names.add(name)
        if CONTENTS not in names:
            raise PackError(f"{self.path} is no pack: it has no {CONTENTS}")

    def _check_digest(self) -> None:
        """That no byte has changed since the pack was written."""
        size = os.fstat(self._file.fileno()).st_size
        digest = _digest(self._file, size - _COMMENT_BYTES)
        if self._file.read() != (_COMMENT + digest).encode():
            raise PackError(
                f"{self.path} is damaged: its bytes are not those that were written. "
                "Copy or make it again"
            )

    def _check_files(self) -> None:
        """That each file is there and has its digest for a name."""
        for entry in self.entries.values():
            metadata = json.loads(self._content(entry.metadata_sha256))
            self._content(entry.binary_sha256)
            if not isinstance(metadata, dict) or metadata.get("hash") != entry.key:
                raise PackError(f"{self.path} has metadata of another kernel under {entry.key}")

    def _content(self, digest: str) -> bytes:
        data = self._read(f"files/{digest}", MOST_MEMBER_BYTES)
        if sha256(data) != digest:
            raise PackError(f"{self.path} is damaged: files/{digest} has another digest")
        return data

    def _read(self, name: str, most: int) -> bytes:
        try:
            with self._archive.open(name) as member:
                # What the archive says of a member's size is not to be relied on.
                data = member.read(most + 1)
        except KeyError:
            raise PackError(f"{self.path} lacks {name}") from None
        if len(data) > most:
            raise PackError(f"{self.path} has a member of more than {most} bytes: {name}")
        return data


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _DATE)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


def _digest(file: BinaryIO, size: int) -> str:
    """Of the first bytes of a file, which is left there."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0:
        chunk = file.read(min(size, 1 << 20))
        if not chunk:
            break
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()
