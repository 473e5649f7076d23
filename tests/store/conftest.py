"""Where the tests keep their stores: SQLite files, and a PostgreSQL server of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritune.store import Store


def _server_programs() -> Path | None:
    """The folder with PostgreSQL's programs; Debian keeps them off the PATH."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server on a free port, with its data in a temporary folder; its URL."""
    programs = _server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    user: str | None = None
    if os.geteuid() == 0:
        # The server refuses to run as root.
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="tritune-postgres-"))
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data, port = folder / "data", _free_port()

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [str(programs / program), "-D", str(data), *arguments],
            check=True, user=user, cwd=folder, capture_output=True,
        )  # fmt: skip

    run("initdb", "-U", "tritune", "-A", "trust", "-N")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c fsync=off -k {folder}"
    # The server keeps its standard streams: a pipe to them would never close.
    run("pg_ctl", "start", "-w", "-o", options, "-l", str(folder / "log"))
    try:
        yield f"postgresql://tritune@127.0.0.1:{port}"
    finally:
        run("pg_ctl", "stop", "-m", "immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql(server: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server}/{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store, in each database that can hold one."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return str(tmp_path / "folder" / "store.sqlite")


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store(location) as opened:
        yield opened


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened
