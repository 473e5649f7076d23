"""The errors of the store. Each message says what is wrong, where, and what to do."""

from __future__ import annotations

from tritune.errors import TrituneError


class StoreError(TrituneError):
    """Raised when a store cannot do what was asked of it."""


class MissingStoreError(StoreError):
    """Raised when there is no store at a location, and none may be made."""


class DamagedStoreError(StoreError):
    """Raised when the database is damaged."""


class NewerStoreError(StoreError):
    """Raised when the store was written by a later version of tritune."""


class FormatError(StoreError):
    """Raised when a file from outside does not make sense."""
