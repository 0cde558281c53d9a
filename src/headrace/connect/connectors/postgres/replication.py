"""A replication connection: a stream of changes from a slot, over libpq."""

from __future__ import annotations

import select
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg import conninfo, pq, sql

from headrace.connect.connectors.postgres.pgoutput import Lsn, lsn_number, lsn_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["KeepAlive", "NewSlot", "ReplicationConnection", "XLogData"]

_XLOG = struct.Struct("!cQQq")
_KEEPALIVE = struct.Struct("!cQqB")
_STATUS = struct.Struct("!cQQQqB")
_EPOCH_MICROS = 946_684_800_000_000


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that has been made, and the snapshot that shows the rows as they were then."""

    name: str
    #: Changes are sent from here on.
    consistent_point: Lsn
    #: Usable by other connections until this one does something else.
    snapshot: str


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of the output plugin."""

    data: bytes
    #: Where the server's log ended when it was sent.
    server_end: Lsn


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A sign of life: all that was committed before ``server_end`` has been sent."""

    server_end: Lsn
    reply_wanted: bool


class ReplicationConnection:
    """A connection in replication mode; a context manager.

    Parameters
    ----------
    dsn
        Where the server is, in libpq's words.
    """

    def __init__(self, dsn: str) -> None:
        # Psycopg's own cursor would prepare statements, which this mode does not know.
        words = conninfo.make_conninfo(dsn, replication="database")
        self._connection = psycopg.connect(words, autocommit=True)
        self._pg = self._connection.pgconn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the server keeps the slot."""
        self._connection.close()

    def create_slot(self, name: str) -> NewSlot:
        """Make a slot, and export a snapshot of the rows of that moment."""
        command = f"CREATE_REPLICATION_SLOT {_quoted(name)} LOGICAL pgoutput EXPORT_SNAPSHOT"
        row = self._execute(command)
        return NewSlot(row[0], lsn_number(row[1]), row[2])

    def drop_slot(self, name: str) -> None:
        """Remove a slot; the server may let go of the log that it kept for it."""
        self._execute(f"DROP_REPLICATION_SLOT {_quoted(name)} WAIT")

    def start(self, slot: str, publication: str, start: Lsn) -> None:
        """Begin to stream a slot's changes from ``start``, or from what was confirmed of it."""
        names = sql.Literal(publication).as_string(None)
        command = (
            f"START_REPLICATION SLOT {_quoted(slot)} LOGICAL {lsn_text(start)}"
            f" (proto_version '1', publication_names {names})"
        )
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())

    def messages(self, wait: float) -> Iterator[XLogData | KeepAlive]:
        """Give what has arrived; wait at most so many seconds for the first of it."""
        deadline = time.monotonic() + wait
        while True:
            length, data = self._pg.get_copy_data(1)
            if length > 0:
                deadline = 0.0
                yield _parse(bytes(data))
            elif length == 0:
                if not self._more(deadline):
                    return
            else:
                self._raise_end()

    def confirm(self, flushed: Lsn, *, reply: bool = False) -> None:
        """Tell the server that it need not send again what was committed before ``flushed``."""
        now = time.time_ns() // 1000 - _EPOCH_MICROS
        self._pg.put_copy_data(_STATUS.pack(b"r", flushed, flushed, flushed, now, reply))
        while self._pg.flush():
            select.select([], [self._pg.socket], [], 1)

    def _more(self, deadline: float) -> bool:
        left = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([self._pg.socket], [], [], left)
        if readable:
            self._pg.consume_input()
        return bool(readable)

    def _raise_end(self) -> None:
        result = self._pg.get_result()
        text = b"" if result is None else result.error_message
        reason = (text or self._pg.error_message).decode(errors="replace").strip()
        message = reason or "the server ended the stream of changes"
        raise psycopg.OperationalError(message)

    def _execute(self, command: str) -> list[str]:
        result = self._pg.exec_(command.encode())
        if result.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
        if not result.ntuples:
            return []
        cells = (result.get_value(0, column) for column in range(result.nfields))
        return [(cell or b"").decode() for cell in cells]


def _parse(data: bytes) -> XLogData | KeepAlive:
    if data[:1] == b"w":
        _, _, end, _ = _XLOG.unpack_from(data)
        return XLogData(data[_XLOG.size :], end)
    _, end, _, reply = _KEEPALIVE.unpack(data)
    return KeepAlive(end, bool(reply))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
