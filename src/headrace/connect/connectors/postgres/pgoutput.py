"""What PostgreSQL's output plugin ``pgoutput`` sends, as values: bytes in, messages out.

A transaction arrives whole, after it was committed: `Begin`, its changes in their order, `CommitMessage`.
A table's `Relation` comes before its first change, and again after its columns changed.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import psycopg
from psycopg import conninfo, pq, sql

if TYPE_CHECKING:
    from types import TracebackType


#: A place in the server's log of changes, as a number: it only rises.
Lsn: TypeAlias = int

#: PostgreSQL counts time from the start of the year 2000.
_EPOCH_MS = 946_684_800_000


class MessageError(ValueError):
    """The server sent bytes that are no message of ``pgoutput``, version 1."""


class Unchanged:
    """The value of a large column that an update did not touch: the server does not send it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()

#: A column's text; None: NULL.
Cell: TypeAlias = "bytes | Unchanged | None"
Row: TypeAlias = "tuple[Cell, ...]"


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a transaction."""

    #: Where its commit stands in the log: transactions come in this order.
    commit_lsn: Lsn
    timestamp_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """The end of a transaction."""

    commit_lsn: Lsn
    #: The next transaction's commit stands behind this.
    end_lsn: Lsn
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as the server describes it."""

    name: str
    type_oid: int
    modifier: int
    #: Whether it belongs to the replica identity.
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is from here on."""

    oid: int
    schema: str
    name: str
    #: ``d`` its primary key, ``f`` all columns, ``i`` an index, ``n`` nothing.
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row; ``old`` is there when its key changed or the identity is the whole row."""

    relation: int
    old: Row | None
    new: Row
    #: Whether ``old`` holds the key's columns only.
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone: its key, or the whole row where that is its identity."""

    relation: int
    old: Row
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that were emptied at once."""

    relations: tuple[int, ...]


Message: TypeAlias = "Begin | CommitMessage | Relation | Insert | Update | Delete | Truncate"


def lsn_text(lsn: Lsn) -> str:
    """Write a place in the log as PostgreSQL does.

    >>> lsn_text(0x16_B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> Lsn:
    """Read a place in the log as PostgreSQL writes it.

    >>> lsn_number("16/B374D848") == 0x16_B374D848
    True
    """
    high, slash, low = text.partition("/")
    if not slash:
        message = f"{text!r} is no place in PostgreSQL's log; one looks like 16/B374D848"
        raise ValueError(message)
    return (int(high, 16) << 32) + int(low, 16)


def decode(data: bytes) -> Message | None:
    """Read one message; None: one that says nothing about rows (origins, types, user's own).

    Raises
    ------
    MessageError
        The bytes are no message, or end too early.
    """
    if not data:
        raise MessageError("an empty message")
    kind = data[:1]
    if kind in b"OYM":
        return None
    read = _READERS.get(kind)
    if read is None:
        message = f"unknown kind {kind!r} of message: {data[:32]!r}"
        raise MessageError(message)
    try:
        return read(_Cursor(data))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        message = f"message of kind {kind!r} is damaged ({error}): {data[:32]!r}"
        raise MessageError(message) from error


class _Cursor:
    """Walks through the bytes of one message, past its kind."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def letter(self) -> str:
        self._at += 1
        return chr(self._data[self._at - 1])

    def text(self) -> str:
        end = self._data.index(0, self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def row(self) -> Row:
        # Written out, as most of the time of a stream is spent here.
        data, at = self._data, self._at
        count = int.from_bytes(data[at : at + 2], "big")
        at += 2
        cells: list[Cell] = []
        for _ in range(count):
            kind = data[at]
            at += 1
            if kind == _TEXT:
                start = at + 4
                at = start + int.from_bytes(data[at:start], "big")
                cells.append(data[start:at])
            elif kind == _NULL:
                cells.append(None)
            elif kind == _UNCHANGED:
                cells.append(UNCHANGED)
            else:
                message = f"a column of kind {chr(kind)!r}"
                raise ValueError(message)
        if at > len(data) or at < self._at + 2:
            raise IndexError("a column ends behind the message")
        self._at = at
        return tuple(cells)


_TEXT, _NULL, _UNCHANGED = b"tnu"
_SHORT = struct.Struct("!H")
_INT = struct.Struct("!I")
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_COLUMN_TYPE = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!IB")


def _begin(cursor: _Cursor) -> Begin:
    lsn, micros, xid = cursor.numbers(_BEGIN)
    return Begin(lsn, micros // 1000 + _EPOCH_MS, xid)


def _commit(cursor: _Cursor) -> CommitMessage:
    _, lsn, end, micros = cursor.numbers(_COMMIT)
    return CommitMessage(lsn, end, micros // 1000 + _EPOCH_MS)


def _relation(cursor: _Cursor) -> Relation:
    (oid,) = cursor.numbers(_INT)
    schema, name, identity = cursor.text(), cursor.text(), cursor.letter()
    (count,) = cursor.numbers(_SHORT)
    # An empty name stands for the system's own schema.
    columns = tuple(_relation_column(cursor) for _ in range(count))
    return Relation(oid, schema or "pg_catalog", name, identity, columns)


def _relation_column(cursor: _Cursor) -> RelationColumn:
    key = cursor.letter() == "\x01"
    name = cursor.text()
    oid, modifier = cursor.numbers(_COLUMN_TYPE)
    return RelationColumn(name, oid, modifier, key)


def _insert(cursor: _Cursor) -> Insert:
    (relation,) = cursor.numbers(_INT)
    _expect(cursor.letter(), "N")
    return Insert(relation, cursor.row())


def _update(cursor: _Cursor) -> Update:
    (relation,) = cursor.numbers(_INT)
    kind = cursor.letter()
    old = None
    old_is_key = kind == "K"
    if kind in "KO":
        old = cursor.row()
        kind = cursor.letter()
    _expect(kind, "N")
    return Update(relation, old, cursor.row(), old_is_key)


def _delete(cursor: _Cursor) -> Delete:
    (relation,) = cursor.numbers(_INT)
    kind = cursor.letter()
    _expect(kind, "KO")
    return Delete(relation, cursor.row(), kind == "K")


def _truncate(cursor: _Cursor) -> Truncate:
    count, _ = cursor.numbers(_TRUNCATE)
    return Truncate(tuple(cursor.numbers(_INT)[0] for _ in range(count)))


def _expect(found: str, wanted: str) -> None:
    if found not in wanted:
        message = f"{found!r} stands where {' or '.join(wanted)} was expected"
        raise ValueError(message)


_READERS: Mapping[bytes, Callable[[_Cursor], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}


# A replication connection: a stream of changes from a slot, over libpq.

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
        """Yield what has arrived; wait at most so many seconds for the first of it."""
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
        """Confirm all before ``flushed``: the server need not send it again."""
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
