"""A store of its own for every test, and a policy that has answered nothing yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tritune.policy import forget, mode, sources
from tritune.policy.policy import Policy


@pytest.fixture(autouse=True)
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where TRITUNE_STORE points; there is nothing there yet."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("TRITUNE_STORE", str(path))
    for name in ("TRITUNE_MODE", "TRITUNE_PINNED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "_warned", set())
    # The ops share one policy: it must neither bring answers to a test nor keep any.
    with mode("default"):
        forget()
        yield path
    forget()


@pytest.fixture
def policy() -> Policy:
    return Policy()
