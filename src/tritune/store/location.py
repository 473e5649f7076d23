"""The location of a store: a file for SQLite, a URL for PostgreSQL."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tritune.env import STORE
from tritune.store.errors import StoreError


@dataclass(frozen=True)
class Location:
    """A file's path or a server's URL: exactly one of the two."""

    path: Path | None = None
    url: URL | None = None

    def __str__(self) -> str:
        # A URL may hold a password, which belongs into no message.
        return str(self.path) if self.url is None else self.url.render_as_string(hide_password=True)

    def beside(self, kind: str) -> Path:
        """Return the path of a file or folder that belongs to the store, such as "policy".

        It is beside a store that is a file, and in the user's cache folder for a server's.
        """
        if self.path is not None:
            return self.path.with_name(f"{self.path.name}.{kind}")
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:16]
        return default_path().with_name(f"{digest}.{kind}")


def default_path() -> Path:
    """Return the file that is used where nobody says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    folder = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return folder / "tritune" / "store.sqlite"


def locate(given: str | Path | None) -> Location:
    """Return the location for a path, a URL, or nothing: TRITUNE_STORE or the default."""
    text = str(given) if given is not None else STORE.read()
    if text is None:
        return Location(path=default_path())
    if not text.strip():
        raise StoreError("the store's location is empty: give a file's path or a URL")
    if "://" not in text:
        return Location(path=Path(text).expanduser())
    return _from_url(text)


def _from_url(text: str) -> Location:
    try:
        url = make_url(text)
    except ArgumentError:
        raise StoreError(
            "the store's URL cannot be read: write postgresql://USER@HOST/DATABASE, or a path"
        ) from None
    family, _, driver = url.drivername.partition("+")
    if family == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StoreError("a store in memory would be lost at once: give a file's path")
        return Location(path=Path(url.database).expanduser())
    if family in ("postgresql", "postgres"):
        return Location(url=url.set(drivername=f"postgresql+{driver or 'psycopg'}"))
    raise StoreError(
        f"a store cannot be kept in {family}: give a file's path for SQLite, "
        "or postgresql://USER@HOST/DATABASE"
    )
