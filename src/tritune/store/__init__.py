"""The database of builds and trials, and other tools' formats. Nothing here measures anything."""

from tritune.store.errors import (
    DamagedStoreError,
    FormatError,
    MissingStoreError,
    NewerStoreError,
    StoreError,
)
from tritune.store.store import Store

__all__ = [
    "DamagedStoreError",
    "FormatError",
    "MissingStoreError",
    "NewerStoreError",
    "Store",
    "StoreError",
]
