"""Recorded spaces from files: T4 results, and tritune's own stores."""

from __future__ import annotations

from pathlib import Path

from tritune.store import FormatError, Store
from tritune.store.contents import contents
from tritune.store.formats import t4
from tritune.store.formats.recorded import Recorded
from tritune.store.formats.spaces import to_recorded

_SQLITE = b"SQLite format 3\0"


def load(path: Path) -> list[Recorded]:
    """The recorded spaces in a file: one in a T4 file, one for each task in a store."""
    try:
        with path.open("rb") as file:
            is_store = file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from None
    if not is_store:
        return [t4.read(path)]
    with Store(path, read_only=True) as store:
        found = to_recorded(contents(store))
    if not found:
        raise FormatError(f"{path} holds no trials to replay: tune something into it first")
    return found
