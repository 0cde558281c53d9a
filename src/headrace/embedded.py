"""The embedded broker of a data folder: found when it runs, started when it does not.

Whoever starts the broker writes its address to ``broker.json`` in the data folder, so that every
command with the same data folder meets the same broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from headrace.errors import StoreLockedError

_CONNECT_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where the broker of a data folder listens."""

    #: ``host:port`` of the name server and broker.
    address: str
    #: The process that it runs in.
    pid: int


def broker_folder(data_dir: Path) -> Path:
    """Return the folder of the broker's own files.

    >>> broker_folder(Path(".headrace")).as_posix()
    '.headrace/broker'
    """
    return data_dir / "broker"


def running_broker(data_dir: Path) -> BrokerAddress | None:
    """Return the broker that runs on a data folder, or None if none answers."""
    try:
        fields = json.loads(_address_file(data_dir).read_text())
        found = BrokerAddress(str(fields["address"]), int(fields["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _answers(found) else None


@contextlib.contextmanager
def address_published(data_dir: Path, address: str, pid: int) -> Iterator[None]:
    """Publish a broker's address to other commands for as long as the context lasts."""
    file = _address_file(data_dir)
    text = json.dumps(asdict(BrokerAddress(address, pid)))
    written = file.with_name(f"{file.name}.{os.getpid()}")
    written.write_text(text)
    written.replace(file)
    try:
        yield
    finally:
        # Another broker may have taken over since.
        if file.exists() and file.read_text() == text:
            file.unlink()


@contextlib.contextmanager
def embedded_broker(
    data_dir: Path, *, patience: timedelta = timedelta(seconds=15)
) -> Iterator[str]:
    """Yield the address of the broker of a data folder; start one when there is none.

    A broker that was started here is a process of its own; it stops with the context, and when
    this process is killed.

    Parameters
    ----------
    data_dir
        The data folder; it is made when it does not exist.
    patience
        How long to wait for a broker that another command is starting.

    Raises
    ------
    StoreLockedError
        When another process holds the folder and no broker answers there.
    """
    from headrace.broker import spawn_broker

    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + patience.total_seconds()
    while (found := running_broker(data_dir)) is None:
        try:
            broker = spawn_broker(broker_folder(data_dir), 0)
        except StoreLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        try:
            with address_published(data_dir, broker.address, broker.pid):
                yield broker.address
        finally:
            broker.stop()
        return
    yield found.address


def _address_file(data_dir: Path) -> Path:
    return data_dir / "broker.json"


def _answers(found: BrokerAddress) -> bool:
    host, _, port = found.address.rpartition(":")
    try:
        os.kill(found.pid, 0)
        with socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT):
            return True
    except (OSError, ValueError):
        return False
