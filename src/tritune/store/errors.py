"""What can go wrong with a store, as the user is told: what, where, and what to do."""

from __future__ import annotations

from tritune.errors import TrituneError


class StoreError(TrituneError):
    """A store cannot do what was asked of it."""


class MissingStoreError(StoreError):
    """There is no store at the place that was given, and none may be made."""


class DamagedStoreError(StoreError):
    """The database is not what was written."""


class NewerStoreError(StoreError):
    """The store was written by a later version of tritune."""


class FormatError(StoreError):
    """A file from outside does not make sense."""
