"""A real PostgreSQL, in a cluster of its own that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.connect.servers.ending import dies_with_parent

_DEBIAN = Path("/usr/lib/postgresql")
_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "20",
    "max_connections": "60",
    "shared_buffers": "64MB",
    # The folder goes anyway; a test of the server's own crash would need it.
    "fsync": "off",
    "max_prepared_transactions": "4",
}


@dataclass(slots=True)
class PostgresServer:
    """Where a running server is; whoever has started it may also end it and start it again."""

    port: int
    folder: Path
    pid: int
    _settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it on its folder, on a free port."""
        data = self.folder / "data"
        self._process, self.port = _start(self.folder, data, _owner(), self._settings)
        self.pid = self._process.pid

    def crash(self) -> None:
        """End it at once; what it has not written by then is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(timeout=30)

    def dsn(self, database: str = "postgres") -> str:
        """Give the words that connect to a database of it."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make an empty database for one test; give the words that connect to it."""
        name = f"test_{time.time_ns()}"
        with psycopg.connect(self.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                yield self.dsn(name)
            finally:
                _drop_slots(admin, name)
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                admin.execute(drop.format(sql.Identifier(name)))


def _drop_slots(admin: psycopg.Connection[Any], database: str) -> None:
    admin.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        [database],
    )
    deadline = time.monotonic() + 10
    where = "database = %s AND active_pid IS NOT NULL"
    while admin.execute(
        f"SELECT 1 FROM pg_replication_slots WHERE {where}",
        [database],
    ).fetchone():
        assert time.monotonic() < deadline, "a replication slot of the test is still in use"
        time.sleep(0.01)
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
        [database],
    )


@contextmanager
def running_postgres(**settings: str) -> Iterator[PostgresServer]:
    """Start PostgreSQL on a free port of 127.0.0.1; stop and remove it in any case.

    ``settings`` of the server go before those of the tests.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    owner = _owner()
    try:
        if owner:
            shutil.chown(folder, **owner)
        data = folder / "data"
        words = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync"]
        _run([_program("initdb"), "-D", str(data), "--locale=C", *words], owner)
        server = PostgresServer(0, folder, 0, _SETTINGS | settings)
        server.start()
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    folder: Path, data: Path, owner: dict[str, str], given: dict[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(3):
        port = _free_port()
        settings = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        where = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [_program("postgres"), "-D", str(data), *where, *settings],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=dies_with_parent,  # noqa: PLW1509  # it makes one system call
                **_identity(owner),
            )
        if _answers(process, port):
            return process, port
    raise AssertionError(f"PostgreSQL did not start:\n{log.read_text()}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=postgres connect_timeout=5").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    process.kill()
    process.wait()
    return False


def _program(name: str) -> str:
    if found := shutil.which(name):
        return found
    # Debian keeps the server's programs off PATH, in a folder per version.
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    assert versions, f"{name} is not installed: run .ci/install-servers"
    return str(versions[-1])


def _owner() -> dict[str, str]:
    # The server refuses to run as root.
    return {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}


def _identity(owner: dict[str, str]) -> dict[str, Any]:
    return {**owner, "extra_groups": []} if owner else {}


def _run(command: list[str], owner: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **_identity(owner),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
