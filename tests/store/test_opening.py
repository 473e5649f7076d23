"""Opening a store: where it is, and what is said when it cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.store.made import RUN, TASK, config, prepared, rounds, trial
from tritune.store import (
    DamagedStoreError,
    MissingStoreError,
    NewerStoreError,
    Store,
    StoreError,
)
from tritune.store.location import locate


def test_by_default_it_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITUNE_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate(None).path == tmp_path / "tritune" / "store.sqlite"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert locate(None).path == tmp_path / "home" / ".cache" / "tritune" / "store.sqlite"


def test_the_environment_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_STORE", str(tmp_path / "a.sqlite"))
    with Store() as store:
        assert store.location == str(tmp_path / "a.sqlite")
    monkeypatch.setenv("TRITUNE_STORE", f"sqlite:///{tmp_path}/b.sqlite")
    assert locate(None).path == tmp_path / "b.sqlite"


def test_what_belongs_to_a_store_is_beside_it_or_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate("/data/a.sqlite").beside("policy") == Path("/data/a.sqlite.policy")
    one, other = (locate(f"postgresql://me@host/{name}").beside("calls") for name in "ab")
    assert one.parent == tmp_path / "tritune" and one.suffix == ".calls"
    assert one != other


def test_a_password_is_in_no_message() -> None:
    where = locate("postgres://me:secret@nowhere.invalid/db")
    assert "secret" not in str(where)
    assert "nowhere.invalid" in str(where)
    with pytest.raises(StoreError) as caught:
        Store("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert "cannot be reached" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("mysql://host/db", "cannot be kept in mysql"),
        ("sqlite://", "would be lost"),
        ("   ", "is empty"),
        ("://", "cannot be read"),
    ],
)
def test_a_location_that_makes_no_sense_is_refused(given: str, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        Store(given)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store(tmp_path)


def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%41&mode=ro ü.sqlite"
    with Store(path) as store:
        prepared(store)
    assert path.exists()
    with Store(path, read_only=True) as store:
        assert RUN in store.runs()


def test_a_newer_store_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '99'")
    for read_only in (True, False):
        with pytest.raises(NewerStoreError, match=r"schema 99.*install that version"):
            Store(path, read_only=read_only)


def test_a_store_without_a_version_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM meta")
    with pytest.raises(DamagedStoreError, match="restore it from an export"):
        Store(path)


def test_a_store_without_a_table_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE samples")
    with pytest.raises(DamagedStoreError, match="lacks the tables samples"):
        Store(path)


@pytest.mark.parametrize(
    "content", [b"not a database " * 100, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="move it away"):
        Store(path)
    assert path.read_bytes() == content


def test_a_damaged_page_is_an_error_and_no_wrong_answer(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        prepared(store)
        for block in range(300):
            store.add_trial(trial(config(block), rounds(1.0 + block)))
    data = bytearray(path.read_bytes())
    # Every page but the first ones, which hold the schema.
    for page in range(len(data) // 2, len(data) - 4096, 4096):
        data[page : page + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))
    with Store(path, read_only=True) as store, pytest.raises(DamagedStoreError):
        store.trials(TASK)


def test_something_that_tritune_did_not_write_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with Store(path) as store:
        prepared(store)
        store.add_trial(trial(config(64), rounds(1.0)))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE trials SET config = 'pickle?'")
    with Store(path) as store, pytest.raises(DamagedStoreError, match="tritune db verify"):
        store.winner(TASK)


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mail (subject TEXT)")
    with pytest.raises(StoreError, match="not a tritune store"):
        Store(path)


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(MissingStoreError, match="tritune tune makes one"):
        Store(tmp_path / "store.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").touch()
    with pytest.raises(MissingStoreError):
        Store(tmp_path / "empty", read_only=True)


def test_a_reader_cannot_write(location: str) -> None:
    Store(location).close()
    with Store(location, read_only=True) as store, pytest.raises(StoreError, match="reading only"):
        store.begin_run(RUN)


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A store that may be read but not written, in a folder that may not be written either."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "store.sqlite"
    with Store(path) as store:
        prepared(store)
        store.add_trial(trial(config(64), rounds(1.0)))
    path.chmod(0o444)
    folder.chmod(0o555)
    yield path
    folder.chmod(0o755)
    shutil.rmtree(folder)


def _without_rights(path: Path, answers: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # nothing is forbidden to root
    with Store(path, read_only=True) as store:
        answers.send(len(store.winners("matmul")))
    try:
        Store(path).record_problem("matmul", "{}", "gpu")
    except StoreError as error:
        answers.send(str(error))


def test_a_store_that_cannot_be_written_is_read(sealed: Path) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_without_rights, args=(sealed, sender))
    process.start()
    sender.close()
    assert receiver.recv() == 1
    refusal = receiver.recv()
    process.join()
    assert "cannot be written" in refusal
    assert str(sealed) in refusal


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"no store can be made at .*TRITUNE_STORE"):
        Store(tmp_path / "file" / "store.sqlite")
