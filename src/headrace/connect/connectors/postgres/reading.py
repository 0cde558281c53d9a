"""Reading one table, or one query, again and again: what is new comes as records."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import TYPE_CHECKING, Any

import psycopg

from headrace.connect import Config, SourceRecord, SourceTaskContext
from headrace.connect.connectors.postgres.connection import (
    Connection,
    TableInfo,
    connect,
    connection_words,
    outages_told,
    quoted,
    quoted_name,
    table_info,
)
from headrace.connect.connectors.postgres.database import RowReader, TypeBook, TypeOptions
from headrace.errors import StateError

if TYPE_CHECKING:
    from psycopg import ServerCursor

    from headrace.connect.connectors.sql import TableName
    from headrace.connect.records import Position


# How far a table may be read: up to where no running transaction can still add rows.
#
# A number from a sequence, or a time, is taken before its row is committed, so rows become visible
# out of order: who remembers the highest number that he saw misses the rows below it that are
# committed later.  So a window is closed first (its upper end is the highest value that is visible),
# then whoever could still commit a row inside it is waited for, and only then it is read.

_DATABASE = "(SELECT oid FROM pg_database WHERE datname = current_database())"

# An INSERT locks its table before it takes the default of a column, and until it commits.
_WRITERS = f"""
SELECT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'relation' AND database = {_DATABASE} AND pid IS DISTINCT FROM pg_backend_pid()
AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_OF_TABLE = (
    " AND relation IN (SELECT to_regclass(%s)::oid"
    " UNION SELECT relid::oid FROM pg_partition_tree(to_regclass(%s)))"
)
# now() is when a transaction began, whatever it has locked since; vacuums write no rows, nor do
# sources like this one, whose sessions have such names.
_ALL = f"""
SELECT l.virtualtransaction, l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND a.datid = {_DATABASE} AND l.pid <> pg_backend_pid()
AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.application_name NOT LIKE 'headrace %'
UNION SELECT '-1/' || transaction::text, NULL FROM pg_prepared_xacts
WHERE database = current_database()
"""
#: Stands before the number of a transaction that was prepared: no process runs it.
_PREPARED = "-1/"


@dataclass(slots=True)
class Writers:
    """Transactions that may still add rows to a window."""

    connection: Connection
    statement: str
    values: tuple[str, ...]
    #: Their names, and the processes that run them.
    running: dict[str, int | None]

    def gone(self) -> bool:
        """Look again, and return whether all of them have ended."""
        if not self.running:
            return True
        now = _running(self.connection, self.statement, self.values)
        # One of them may have been prepared meanwhile, under another name.
        self.running = {
            name: pid
            for name, pid in now.items()
            if name in self.running or name.startswith(_PREPARED)
        }
        return not self.running

    def __str__(self) -> str:
        pids = sorted(pid for pid in self.running.values() if pid is not None)
        prepared = len(self.running) - len(pids)
        words = [f"processes {', '.join(map(str, pids))}"] if pids else []
        words += [f"{prepared} prepared transactions"] if prepared else []
        return " and ".join(words) or "nobody"


def writers_of(connection: Connection, table: TableName | None) -> Writers:
    """Find who writes to a table right now; of a query, to any table of the database."""
    statement, values = _WRITERS, tuple[str, ...]()
    if table is not None:
        name = quoted(table)
        statement, values = _WRITERS + _OF_TABLE, (name, name)
    return Writers(connection, statement, values, _running(connection, statement, values))


def all_transactions(connection: Connection) -> Writers:
    """Find every transaction of the database that runs right now."""
    return Writers(connection, _ALL, (), _running(connection, _ALL, ()))


def _running(
    connection: Connection, statement: str, values: tuple[str, ...]
) -> dict[str, int | None]:
    return dict(connection.execute(statement, values or None).fetchall())


Row = tuple[Any, ...]
_COMPLAINT = 30.0


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What is read: a table, or a query."""

    partition: Position
    topic: str
    #: ``None`` for a query.
    table: TableName | None
    query: str
    info: TableInfo

    @property
    def text(self) -> str:
        """What stands behind FROM."""
        name = f"({self.query})" if self.table is None else quoted(self.table)
        return name.replace("%", "%%")


@dataclass(frozen=True, slots=True)
class _Order:
    """What rows are ordered by, and remembered by."""

    names: tuple[str, ...]
    expressions: tuple[str, ...]
    types: tuple[str, ...]
    #: Whether no two rows are equal in it.
    unique: bool

    @property
    def place(self) -> str:
        return f"({', '.join(self.expressions)})"

    @property
    def marks(self) -> str:
        return f"({', '.join(f'%s::{kind}' for kind in self.types)})"


class WindowReader:
    """Reads one source: closes a window, waits until it is safe, streams it, begins again.

    Parameters
    ----------
    connection
        A connection that the reader has for itself while it streams.
    source
        What is read.
    config
        How it is read.
    types
        The database's types.
    position
        Where an earlier life stood.
    """

    def __init__(
        self,
        connection: Connection,
        source: ReadSource,
        config: Config,
        types: TypeBook,
        position: Position | None,
        logger: Logger,
    ) -> None:
        self.source = source
        self.due = 0.0
        self._connection = connection
        self._config = config
        self._logger = logger
        self._bulk = config["mode"] == "bulk"
        #: Whether rows are found by their times.
        self._timed = "timestamp" in config["mode"]
        self._interval: float = config["poll.interval.ms"].total_seconds()
        self._rows = self._described(types)
        self._order = self._ordered()
        self._position = dict(position or {})
        self._window: _Window | None = None
        self._stream: Iterator[SourceRecord] | None = None
        self._cursor: ServerCursor[Row] | None = None
        if self._bulk:
            self.due = _bulk_due(self._position, self._interval)
        elif self._position and set(self._position) != set(self._order.names):
            raise self._foreign_position()

    @property
    def streaming(self) -> bool:
        """Whether it is in the middle of a window: nobody else may use the connection."""
        return self._stream is not None

    def read(self, limit: int) -> list[SourceRecord]:
        """Return what is new, in parts; nothing while there is nothing, or while it must wait."""
        if self._stream is None and not self._begun():
            return []
        assert self._stream is not None
        found = list(itertools.islice(self._stream, limit))
        if found and not self._order.unique:
            # Rows that are equal in the order have one position: they stay together.
            last = found[-1].offset
            while last == self._position and (more := next(self._stream, None)) is not None:
                found.append(more)
                last = more.offset
        if len(found) < limit:
            self._stream = None
            self._window = None
        if found:
            self._position = dict(found[-1].offset)
        return found

    def _begun(self) -> bool:
        if self._bulk:
            self._stream = self._all_rows()
            self.due = time.monotonic() + self._interval
            return True
        if self._window is None:
            self._window = self._closed()
        if self._window is None:
            self.due = time.monotonic() + self._interval
            return False
        if not self._window.safe(self._logger, self.source):
            self.due = time.monotonic() + min(0.05, self._interval)
            return False
        self._stream = self._streamed(self._window)
        return True

    def _closed(self) -> _Window | None:
        """Find the upper end of what is new; ``None`` when nothing is."""
        order = self._order
        first = order.expressions[0]
        where, values = self._after()
        if delay := self._config["timestamp.delay.ms"].total_seconds():
            where.append(f"{first} <= now() - make_interval(secs => %s)")
            values.append(delay)
        row = self._connection.execute(
            f"SELECT (max({first}))::text FROM {self.source.text} AS t{_where(where)}", values
        ).fetchone()
        if row is None or row[0] is None:
            return None
        return _Window(str(row[0]), self._writers(), time.monotonic())

    def _writers(self) -> Writers | None:
        if not self._config["transactions.wait"]:
            return None
        if self._timed:
            return all_transactions(self._connection)
        return writers_of(self._connection, self.source.table)

    def _after(self) -> tuple[list[str], list[Any]]:
        order = self._order
        if not self._position:
            return [f"{order.expressions[0]} IS NOT NULL"], []
        values = [self._position[name] for name in order.names]
        return [f"{order.place} > {order.marks}"], values

    def _streamed(self, window: _Window) -> Iterator[SourceRecord]:
        order = self._order
        where, values = self._after()
        where.append(f"{order.expressions[0]} <= %s::{order.types[0]}")
        texts = ", ".join(f"({one})::text" for one in order.expressions)
        statement = (
            f"SELECT t.*, {texts} FROM {self.source.text} AS t{_where(where)}"
            f" ORDER BY {', '.join(order.expressions)}"
        )
        count = len(order.names)
        position: Mapping[str, Any] = dict(self._position)
        rows = self._scanned(statement, [*values, window.end])
        for row, following in _with_next(rows):
            place = row[-count:]
            if order.unique or following is None or following[-count:] != place:
                position = dict(zip(order.names, place, strict=True))
            yield self._record(row, position)

    def _all_rows(self) -> Iterator[SourceRecord]:
        load = int(self._position.get("load", 0)) + 1
        rows = self._scanned(f"SELECT t.* FROM {self.source.text} AS t", [])
        for number, (row, following) in enumerate(_with_next(rows), 1):
            position: dict[str, Any] = {"load": load, "rows": number}
            if following is None:
                position["done"] = int(time.time() * 1000)
            yield self._record(row, position)

    def _scanned(self, statement: str, values: Sequence[Any]) -> Iterator[Row]:
        # One scan with a cursor of the server, however many polls it takes.
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._cursor = self._connection.cursor("headrace")
        self._cursor.execute(statement, values)
        while rows := self._cursor.fetchmany(1000):
            yield from rows
        self.close()
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Let go of the server's cursor."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _record(self, row: Row, position: Mapping[str, Any]) -> SourceRecord:
        rows = self._rows
        value = rows.value(row)
        return SourceRecord(
            partition=self.source.partition,
            offset=position,
            topic=self.source.topic,
            key=rows.key(value),
            value=value,
            key_schema=rows.key_schema,
            value_schema=rows.schema,
        )

    def _described(self, types: TypeBook) -> RowReader:
        info = self.source.info
        keys = self._config["key.fields"] or info.keys
        cursor = self._connection.execute(f"SELECT t.* FROM {self.source.text} AS t LIMIT 0", ())
        columns = [
            types.column(
                one.name,
                one.type_code,
                one._fmod,  # noqa: SLF001  # the modifier, without what psycopg makes of it
                optional=one.name not in info.required and one.name not in keys,
            )
            for one in cursor.description or ()
        ]
        return RowReader(self.source.topic, columns, keys)

    def _ordered(self) -> _Order:
        if self._bulk:
            return _Order((), (), (), unique=True)
        names: list[str] = []
        expressions: list[str] = []
        if self._timed:
            columns = self._config["timestamp.column.name"]
            stamps = [f"t.{quoted_name(one)}" for one in columns]
            names.append(columns[0])
            expressions.append(stamps[0] if len(stamps) == 1 else f"COALESCE({', '.join(stamps)})")
        number = self._config["incrementing.column.name"]
        keys = [number] if "incrementing" in self._config["mode"] else self.source.info.keys
        ties = [one for one in keys if one not in names]
        names += ties
        expressions += [f"t.{quoted_name(one)}" for one in ties]
        probe = self._connection.execute(
            f"SELECT {', '.join(expressions)} FROM {self.source.text} AS t LIMIT 0", ()
        )
        oids = [one.type_code for one in probe.description or ()]
        kinds = [self._connection.execute("SELECT %s::regtype::text", (oid,)) for oid in oids]
        types = tuple(str(row[0]) for kind in kinds for row in kind.fetchall())
        return _Order(tuple(names), tuple(expressions), types, unique=bool(ties))

    def _foreign_position(self) -> StateError:
        return StateError(
            f"The position {self._position} of {self.source.partition} was not made by the columns"
            f" {', '.join(self._order.names)}, by which the source is read now.",
            hint="Set mode and columns as they were, or stop the connector and reset its offsets.",
        )


@dataclass(slots=True)
class _Window:
    end: str
    writers: Writers | None
    complained: float

    def safe(self, logger: Logger, source: ReadSource) -> bool:
        """Return whether nobody can add rows to it any more."""
        if self.writers is None or self.writers.gone():
            return True
        if time.monotonic() - self.complained > _COMPLAINT:
            self.complained = time.monotonic()
            logger.warning("%s waits for transactions of %s", source.topic, self.writers)
        return False


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _with_next(rows: Iterator[Row]) -> Iterator[tuple[Row, Row | None]]:
    """Pair each row with the one after it."""
    before = next(rows, None)
    if before is None:
        return
    for row in rows:
        yield before, row
        before = row
    yield before, None


def _bulk_due(position: Position, interval: float) -> float:
    if "done" not in position:
        return 0.0
    age: float = time.time() - position["done"] / 1000
    return time.monotonic() + max(0.0, interval - age)


# A task that reads tables by queries.

_LONGEST_WAIT = 0.5


class IncrementalFeed:
    """Reads its share of the tables, one after the other.

    Parameters
    ----------
    config
        The task's config.
    tables
        Its share; nothing when it reads a query.
    context
        The task's context.
    """

    def __init__(
        self, config: Config, tables: Sequence[TableName], context: SourceTaskContext
    ) -> None:
        self._config = config
        self._tables = tables
        self._context = context
        self._limit: int = config["batch.max.rows"]
        #: Where records that were given end, which a new connection goes on from.
        self._given: dict[str, Position] = {}
        self._connection: Connection | None = None
        self._readers: list[WindowReader] = []
        self._open()

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return what is new in one of the tables."""
        with outages_told():
            if self._connection is None:
                self._open()
            try:
                found = self._read()
            except psycopg.OperationalError:
                self.close()
                raise
        if found:
            self._given[found[0].topic] = found[-1].offset
        return found

    def commit(self) -> None:
        """Do nothing: the database need not know what was read."""

    def close(self) -> None:
        """End the connection."""
        for reader in self._readers:
            reader.close()
        self._readers = []
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self) -> list[SourceRecord] | None:
        # The one that streams has the connection; the others wait.
        now = time.monotonic()
        streaming = [one for one in self._readers if one.streaming]
        for reader in streaming or self._readers:
            if reader.streaming or reader.due <= now:
                found = reader.read(self._limit)
                if found:
                    self._readers.remove(reader)
                    self._readers.append(reader)
                    return found
        due = min((one.due for one in self._readers), default=now + _LONGEST_WAIT)
        self._context.stopping.wait(max(0.0, min(_LONGEST_WAIT, due - time.monotonic())))
        return None

    def _open(self) -> None:
        name = f"headrace {self._context.connector}"
        connection = connect(connection_words(self._config, name))
        options = TypeOptions(self._config["numeric.mapping"], self._config["timestamp.mapping"])
        types = TypeBook(connection, options)
        try:
            self._readers = [
                self._reader(connection, source, types) for source in self._sources(connection)
            ]
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _reader(self, connection: Connection, source: ReadSource, types: TypeBook) -> WindowReader:
        position = self._given.get(source.topic) or self._context.offsets.get(source.partition)
        logger = self._context.logger
        return WindowReader(connection, source, self._config, types, position, logger)

    def _sources(self, connection: Connection) -> list[ReadSource]:
        config = self._config
        if query := config["query"]:
            topic = config["topic.prefix"]
            text = query.rstrip().rstrip(";")
            nothing = TableInfo((), frozenset())
            return [ReadSource({"query": topic}, topic, None, text, nothing)]
        return [self._source(connection, table) for table in self._tables]

    def _source(self, connection: Connection, table: TableName) -> ReadSource:
        topic = topic_of(self._config, table)
        return ReadSource({"table": str(table)}, topic, table, "", table_info(connection, table))


def topic_of(config: Config, table: TableName) -> str:
    """Return the topic of a table."""
    text: str = config["topic.format"]
    named = text.replace("${table}", table.name).replace("${schema}", table.schema or "")
    return f"{config['topic.prefix']}{named}"
