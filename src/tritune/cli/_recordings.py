"""Recorded spaces from files: T4 results, and tritune's own stores."""

from __future__ import annotations

import math
from pathlib import Path

from tritune.policy.measured import times_of
from tritune.space import Listed
from tritune.store import FormatError, Store
from tritune.store.formats import t4
from tritune.store.formats.recorded import Recorded

_SQLITE = b"SQLite format 3\0"


def load(path: Path) -> list[Recorded]:
    """The recorded spaces in a file: one in a T4 file, one for each task in a store."""
    try:
        with path.open("rb") as file:
            is_store = file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}") from None
    return _from_store(path) if is_store else [t4.read(path)]


def _from_store(path: Path) -> list[Recorded]:
    found = []
    with Store(path, read_only=True) as store:
        for task in store.tasks():
            times = times_of(store.trials(task))
            if times:
                found.append(
                    Recorded(
                        name=f"{task.kernel} {task.problem} {task.device}",
                        device=task.device,
                        kernel=task.kernel,
                        parameters=Listed(times).parameters,
                        results={c: ms if ms < math.inf else None for c, ms in times.items()},
                    )
                )
    if not found:
        raise FormatError(f"{path} holds no trials to replay: tune something into it first")
    return found
