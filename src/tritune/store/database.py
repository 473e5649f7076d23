"""The connection to the database: opening, transactions, errors."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from tritune.store import schema
from tritune.store.errors import DamagedStoreError, MissingStoreError, StoreError
from tritune.store.location import Location

#: How long a writer waits for the others.
BUSY_SECONDS = 60.0

# SQLite must not carry open connections across a fork: the child would share the parent's locks.
_open: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """One store's database, for any number of threads, and for children after a fork."""

    def __init__(self, location: Location, *, read_only: bool) -> None:
        self.location = location
        self.read_only = read_only
        self._engine: Engine | None = None
        self._pid = os.getpid()
        with self.errors():
            if location.path is not None:
                self._prepare_file(location.path)
            self._prepare_schema()
        _open.add(self)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the store."""
        with self.errors(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is committed as a whole or not at all."""
        if self.read_only:
            raise StoreError(f"{self.location} was opened for reading only")
        with self.errors(), self.engine.connect() as connection:
            connection = connection.execution_options(tritune_writes=True)
            with connection.begin():
                yield connection

    @contextmanager
    def unguarded(self) -> Iterator[Connection]:
        """Open a connection outside any transaction, for VACUUM and the like."""
        with self.errors(), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def engine(self) -> Engine:
        if self._pid != os.getpid():
            # What is left of the parent's engine is neither used nor closed: it is the parent's.
            self._pid, self._engine = os.getpid(), None
        if self._engine is None:
            self._engine = self._connectable()
        return self._engine

    def close(self) -> None:
        """Close the idle connections; the next use opens new ones."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the database's errors into errors for people."""
        try:
            yield
        except DBAPIError as error:
            raise _explained(error, self.location) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.location}: {_first_line(error)}") from error

    def _prepare_file(self, path: Path) -> None:
        if path.is_dir():
            raise StoreError(f"{path} is a folder: give the path of a file for the store")
        if self.read_only:
            if not path.exists():
                raise MissingStoreError(
                    f"there is no store at {path}: tritune tune makes one; "
                    "--store or TRITUNE_STORE name another"
                )
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"no store can be made at {path}: {error.strerror or error}; "
                "name another place with --store or TRITUNE_STORE"
            ) from None

    def _prepare_schema(self) -> None:
        with self.read() as connection:
            present = schema.state(connection, self.location)
        if present:
            return
        if self.read_only:
            raise MissingStoreError(f"there is no store at {self.location}: the database is empty")
        if self.location.path is not None:
            self._use_write_ahead_log()
        with self.write() as connection:
            schema.create(connection)

    def _use_write_ahead_log(self) -> None:
        """Switch the file to WAL, which it remembers. SQLite does not queue for this: retry."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with self.engine.connect() as connection:
                    unguarded = connection.execution_options(isolation_level="AUTOCOMMIT")
                    unguarded.exec_driver_sql("PRAGMA journal_mode=WAL")
                return
            except DBAPIError as error:
                if "locked" not in str(error.orig) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _connectable(self) -> Engine:
        if self.location.path is not None:
            return _sqlite(self.location.path, read_only=self.read_only)
        assert self.location.url is not None
        try:
            options = {"options": "-c default_transaction_read_only=on"} if self.read_only else {}
            return create_engine(self.location.url, pool_pre_ping=True, connect_args=options)
        except (ModuleNotFoundError, NoSuchModuleError):
            raise StoreError(
                f"{self.location} needs the driver {self.location.url.get_driver_name()}: "
                "pip install 'tritune[postgresql]'"
            ) from None


def _sqlite(path: Path, *, read_only: bool) -> Engine:
    uri = f"{path.absolute().as_uri()}?{_access(path) if read_only else 'mode=rwc'}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # In WAL mode, NORMAL syncs at checkpoints only: a commit survives the process, and
            # after a power cut the file is sound. FULL would cost a sync for every trial.
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute(f"PRAGMA query_only={'ON' if read_only else 'OFF'}")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") == "AUTOCOMMIT":
            return
        # A transaction that starts reading and then writes cannot wait for its turn; one that
        # says so at once can.
        writes = options.get("tritune_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _access(path: Path) -> str:
    """Return the options for opening a SQLite file in order to read it.

    Readers in WAL mode write too: the shared memory, and what a killed process left undone. Where
    they may not, and nothing is undone, the file is taken for one that nobody changes.
    """
    log = Path(f"{path}-wal")
    if all(os.access(place, os.W_OK) for place in (path, path.absolute().parent)):
        return "mode=rw"
    return "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _explained(error: DBAPIError, where: Location) -> StoreError:
    reason = _first_line(error.orig or error)
    lower = reason.lower()
    if "not a database" in lower or "malformed" in lower or "corrupt" in lower:
        return DamagedStoreError(
            f"{where} is damaged, or no store at all ({reason}): restore it from an export, "
            "or move it away and tune again"
        )
    if "locked" in lower or "busy" in lower:
        return StoreError(
            f"{where} is busy: another process has been writing for {BUSY_SECONDS:.0f} s ({reason})"
        )
    if "readonly" in lower or "read-only" in lower or "permission" in lower:
        return StoreError(
            f"{where} cannot be written ({reason}): name another store with --store or "
            "TRITUNE_STORE, or mend its permissions"
        )
    if "unable to open" in lower:
        return StoreError(
            f"{where} cannot be opened ({reason}): check that the folder exists and its permissions"
        )
    if "disk is full" in lower or "no space" in lower:
        return StoreError(f"{where}: the disk is full; nothing was lost, but nothing was added")
    if where.url is not None and "connect" in lower:
        return StoreError(f"{where} cannot be reached: {reason}")
    return StoreError(f"{where}: {reason}")


def _before_fork() -> None:
    for database in list(_open):
        database.close()


os.register_at_fork(before=_before_fork)
