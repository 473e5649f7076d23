"""AOTriton's tuning databases: SQLite, one table per kernel, one row per problem with its winner.

Columns named `inputs$…` are the problem, `tuned_kernel$…` and `compiler_options$…` the config.
"""

from __future__ import annotations

import lzma
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tritune.store.contents import Contents
from tritune.store.document import config_from_json
from tritune.store.errors import FormatError
from tritune.store.formats.foreign import claim, imported_run, named_device
from tritune.store.records import Run, Task, Trial, problem_text
from tritune.targets.device import Device

MAGIC = b"SQLite format 3\x00"
_CONFIG = ("tuned_kernel$", "compiler_options$")
# Far beyond any real one; a small archive can hold a file that fills the disk.
_LARGEST_BYTES = 1 << 30
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def recognises(path: Path) -> bool:
    """Return whether it is a SQLite file, or an archive, which other formats are not."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or tarfile.is_tarfile(path)
    except _DAMAGE:
        return False


def read(path: Path) -> Contents:
    """Return the winners of every kernel in the file. They come without times."""
    try:
        with _unpacked(path) as database, closing(_opened(database)) as connection:
            return _contents(path, connection)
    except (*_DAMAGE, sqlite3.Error, tarfile.TarError) as error:
        raise FormatError(f"{path} is damaged, or no AOTriton database: {error}") from None


def _contents(path: Path, connection: sqlite3.Connection) -> Contents:
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    if {"meta", "trials"} <= set(names):
        raise FormatError(f"{path} is a tritune store: add it with tritune db merge")
    devices: dict[str, Device] = {}
    trials: list[Trial] = []
    run = imported_run("aotriton", {"file": path.name}, sorted(names))
    for name in sorted(names):
        trials += _table(path, connection, name, run, devices)
    if not trials:
        raise FormatError(f"{path}: none of its tables is one of AOTriton's ({', '.join(names)})")
    return Contents({d.fingerprint: d for d in devices.values()}, (run,), trials=tuple(trials))


def _table(
    path: Path, connection: sqlite3.Connection, name: str, run: Run, devices: dict[str, Device]
) -> Iterator[Trial]:
    quoted = name.replace('"', '""')
    cursor = connection.execute(f'SELECT * FROM "{quoted}"')
    columns = [column[0] for column in cursor.description]
    if "gpu" not in columns or not any(column.startswith("inputs$") for column in columns):
        return
    family, _, kernel = name.rpartition("$")
    for values in cursor:
        row = dict(zip(columns, values, strict=True))
        gpu = str(row["gpu"])
        if gpu not in devices:
            # gfx942_mod0: the architecture, and which of its variants.
            devices[gpu] = named_device(gpu, path, target=f"hip:{gpu.partition('_')[0]}")
        problem = problem_text(_fields(row, ("inputs$",)))
        task = Task(kernel, f"aotriton-{family}", problem, devices[gpu].fingerprint)
        yield claim(task, config_from_json(_fields(row, _CONFIG), f"{path}: {name}"), run)


def _fields(row: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    return {
        column.partition("$")[2]: value
        for column, value in row.items()
        if column.startswith(prefixes) and value is not None
    }


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield the SQLite file itself, taken out of its archive if it is in one."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            yield path
            return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
        files = [member for member in archive if member.isfile()]
        if len(files) != 1 or files[0].size > _LARGEST_BYTES:
            raise FormatError(f"{path} is no AOTriton database: expected one SQLite file in it")
        content = archive.extractfile(files[0])
        assert content is not None
        # Under a name of our own: the archive's may point anywhere.
        unpacked = Path(folder) / "database.sqlite3"
        unpacked.write_bytes(content.read())
        yield unpacked
