"""The schema: the tables, and their version. docs/store.md describes them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
)

from tritune.store.errors import DamagedStoreError, NewerStoreError, StoreError

VERSION = 1

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    Column("fingerprint", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("cores", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("driver", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("command", Text, nullable=False),
    Column("environment", Text, nullable=False),
    Column("started", Text, nullable=False),
)

# Problems can be longer than a PostgreSQL index allows: `key` is a digest of the other columns.
tasks = Table(
    "tasks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("kernel", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("device", Text, ForeignKey("devices.fingerprint"), nullable=False),
    Index("tasks_by_kernel", "kernel", "identity", "device"),
)

builds = Table(
    "builds",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kernel", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("signature", Text, nullable=False),
    Column("config_key", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("binary", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("failure", Text),
    Column("message", Text, nullable=False),
    UniqueConstraint("kernel", "identity", "target", "signature", "config_key"),
)

trials = Table(
    "trials",
    metadata,
    Column("task_id", Integer, ForeignKey("tasks.id"), primary_key=True),
    Column("config_key", Text, primary_key=True),
    Column("config", Text, nullable=False),
    Column("run", Text, ForeignKey("runs.id"), nullable=False, index=True),
    Column("tried_at", Text, nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("failure", Text),
    Column("message", Text, nullable=False),
    Column("binary", Text, nullable=False),
    Column("duplicate_of", Text),
)

samples = Table(
    "samples",
    metadata,
    Column("task_id", Integer, primary_key=True),
    Column("config_key", Text, primary_key=True),
    Column("run", Text, ForeignKey("runs.id"), primary_key=True, index=True),
    Column("stage", Text, primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("times_ms", Text, nullable=False),
    ForeignKeyConstraint(["task_id", "config_key"], ["trials.task_id", "trials.config_key"]),
)

met = Table(
    "met",
    metadata,
    Column("key", Text, primary_key=True),  # a digest, as for tasks
    Column("kernel", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("count", BigInteger, nullable=False),
    Index("met_by_kernel", "kernel", "device"),
)

# Any number will do that nothing else in the same PostgreSQL database uses for its own lock.
_CREATION_LOCK = 0x7472_6974_756E_6531


def create(connection: Connection) -> None:
    """Make the tables of an empty database. Runs in a transaction that only one process has."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})"))
    if inspect(connection).has_table("meta"):
        return
    metadata.create_all(connection)
    connection.execute(meta.insert().values(key="schema", value=str(VERSION)))


def state(connection: Connection, where: object) -> bool:
    """Return whether there is a store of this version; False for an empty database.

    Raise an error that says what to do about anything else.
    """
    names = set(inspect(connection).get_table_names())
    if "meta" not in names:
        ours = set(metadata.tables) & names
        if not names or (connection.dialect.name == "postgresql" and not ours):
            return False
        raise StoreError(
            f"{where} is a database, but not a tritune store: give another location, "
            "with --store or TRITUNE_STORE"
        )
    value = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar()
    if value is None or not value.isdigit():
        raise DamagedStoreError(
            f"{where} does not say which schema it has ({value!r}): restore it from an export, "
            "or move it away and tune again"
        )
    if int(value) > VERSION:
        raise NewerStoreError(
            f"{where} was written by a later tritune (schema {value}, this one knows {VERSION}): "
            "install that version, or use another store with --store or TRITUNE_STORE"
        )
    missing = set(metadata.tables) - names
    if missing:
        raise DamagedStoreError(
            f"{where} lacks the tables {', '.join(sorted(missing))}: restore it from an export, "
            "or move it away and tune again"
        )
    return True
