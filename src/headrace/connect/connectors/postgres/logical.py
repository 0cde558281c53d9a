"""A task that reads a server's log of changes: first the rows that are there, then every change."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import psycopg

from headrace.connect.connectors.postgres.connection import (
    Connection,
    connect,
    connection_words,
    outages_told,
    quoted,
    table_info,
)
from headrace.connect.connectors.postgres.database import RowReader, TypeBook, TypeOptions
from headrace.connect.connectors.postgres.pgoutput import (
    Begin,
    CommitMessage,
    Delete,
    Insert,
    KeepAlive,
    Lsn,
    Message,
    NewSlot,
    Relation,
    ReplicationConnection,
    Truncate,
    Update,
    XLogData,
    decode,
    lsn_number,
    lsn_text,
)
from headrace.connect.connectors.postgres.reading import topic_of
from headrace.connect.connectors.postgres.translation import (
    ChangeTime,
    Made,
    MadeColumns,
    Translator,
)
from headrace.connect.connectors.sql import TableName
from headrace.errors import ConnectorConfigError, StateError

if TYPE_CHECKING:
    from headrace.connect import Config, SourceBatch, SourceRecord, SourceTaskContext
    from headrace.connect.records import Position


# The rows that are there when a slot is made: they come before its changes.

_Rows: TypeAlias = "Sequence[Made] | MadeColumns"
#: A message that is about rows.
Change: TypeAlias = "Insert | Update | Delete | Truncate"


def snapshot(
    connection: Connection,
    translator: Translator,
    tables: Sequence[TableName],
    slot: NewSlot,
    partition: Position,
    options: TypeBook,
    most: int,
) -> Iterator[Sequence[SourceRecord] | SourceBatch]:
    """Yield every row as it was when the slot was made, so many at once at most.

    Only the last record's position says that the snapshot is whole: a task that dies before that
    was committed takes a new one.
    """
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(f"SET TRANSACTION SNAPSHOT '{slot.snapshot}'")
    moment = ChangeTime(slot.consistent_point, int(time.time() * 1000), None, snapshot=True)
    types = TypeBook(connection, options.options)
    before: _Rows | None = None
    count = 0
    for table in tables:
        for made in _rows(connection, translator, types, table, moment, most):
            if before is not None:
                count += 1
                yield _given(before, partition, {"snapshot": count})
            before = made
    # Nobody need wait for its locks until the last rows are taken.
    connection.execute("COMMIT")
    if before is not None:
        done = {"lsn": lsn_text(slot.consistent_point), "record": 0}
        yield _given(before, partition, done, on_the_way={"snapshot": count + 1})


def _rows(
    connection: Connection,
    translator: Translator,
    types: TypeBook,
    table: TableName,
    moment: ChangeTime,
    most: int,
) -> Iterator[_Rows]:
    source = quoted(table)
    keys = table_info(connection, table).keys
    described = connection.execute(f"SELECT * FROM {source} LIMIT 0").description or ()
    columns = [
        types.column(
            one.name,
            one.type_code,
            one._fmod,  # noqa: SLF001  # the modifier, without what psycopg makes of it
            optional=one.name not in keys,
        )
        for one in described
    ]
    reader = RowReader(translator.topic(table), columns, keys)
    with connection.cursor("headrace") as cursor:
        cursor.execute(f"SELECT * FROM {source}")
        while rows := cursor.fetchmany(most):
            yield translator.snapshot_rows(table, reader, rows, moment)


def _given(
    made: _Rows, partition: Position, offset: Position, *, on_the_way: Position | None = None
) -> Sequence[SourceRecord] | SourceBatch:
    """Return rows that are behind a position as a whole, and on the way to it before."""
    if isinstance(made, MadeColumns):
        return made.placed(partition, offset)
    places = [on_the_way or offset] * (len(made) - 1) + [offset]
    return [one.placed(partition, place) for one, place in zip(made, places, strict=True)]


# Slots and publications: what the server keeps for a reader of its log of changes.

_LONGEST_NAME = 63


def default_name(connector: str) -> str:
    """Make the name of a slot out of a connector's.

    >>> default_name("Orders (EU)")
    'headrace_orders__eu_'
    """
    return re.sub(r"[^a-z0-9_]", "_", f"headrace_{connector.lower()}")[:_LONGEST_NAME]


def check_server(connection: Connection) -> None:
    """Refuse a server that keeps no log of changes that can be decoded.

    Raises
    ------
    ConnectorConfigError
        Saying which setting of the server to change.
    """
    row = connection.execute("SHOW wal_level").fetchone()
    if row is not None and row[0] != "logical":
        message = (
            f"The server's wal_level is {row[0]}, and mode=logical needs logical: set it in"
            " postgresql.conf, and restart the server."
        )
        raise ConnectorConfigError.of([("mode", message)])


def slot_exists(connection: Connection, name: str) -> bool:
    """Return whether a slot is there."""
    found = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (name,))
    return found.fetchone() is not None


def free_slot(connection: Connection, name: str, wait: float = 10.0) -> None:
    """End the session of a predecessor that the server still thinks alive.

    Raises
    ------
    StateError
        Somebody else reads the slot.
    """
    deadline = time.monotonic() + wait
    while True:
        row = connection.execute(
            "SELECT s.active_pid, a.application_name FROM pg_replication_slots s"
            " LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid"
            " WHERE s.slot_name = %s AND s.active_pid IS NOT NULL",
            (name,),
        ).fetchone()
        if row is None:
            return
        if not str(row[1]).startswith("headrace ") or time.monotonic() > deadline:
            raise StateError(
                f"The replication slot {name} is being read by process {row[0]} of the server"
                f" ({row[1] or 'without a name'}).",
                hint="Stop that reader, or set slot.name to another name.",
            )
        connection.execute("SELECT pg_terminate_backend(%s)", (row[0],))
        time.sleep(0.02)


def ensure_publication(
    connection: Connection, name: str, tables: Sequence[TableName], *, create: bool
) -> None:
    """Make sure that a publication has all these tables.

    Raises
    ------
    ConnectorConfigError
        It has not, and may not be changed.
    """
    missing = _unpublished(connection, name, tables)
    if not missing:
        return
    if not create:
        message = (
            f"The publication {name} lacks {', '.join(map(str, missing))}, and"
            " publication.autocreate is false: add them, or let the connector do it."
        )
        raise ConnectorConfigError.of([("publication.name", message)])
    names = ", ".join(quoted(table).replace("%", "%%") for table in missing)
    identifier = '"' + name.replace('"', '""').replace("%", "%%") + '"'
    exists = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (name,))
    if exists.fetchone() is None:
        # Rows of partitions count as their table's.
        options = "WITH (publish_via_partition_root = true)"
        connection.execute(f"CREATE PUBLICATION {identifier} FOR TABLE {names} {options}", ())
    else:
        connection.execute(f"ALTER PUBLICATION {identifier} ADD TABLE {names}", ())


def _unpublished(connection: Connection, name: str, tables: Sequence[TableName]) -> list[TableName]:
    rows = connection.execute(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,)
    )
    published = {TableName(*row) for row in rows.fetchall()}
    return [table for table in tables if table not in published]


def check_position(connection: Connection, lsn: Lsn) -> None:
    """Refuse to go on behind the end of the server's log: it is another server's position.

    Raises
    ------
    StateError
        Saying what happened to the server.
    """
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    if row is not None and lsn_number(row[0]) < lsn:
        raise StateError(
            f"The committed position stands behind the end of the server's log ({row[0]}): the"
            " server was restored from a backup, or is another one.",
            hint="Stop the connector and reset its offsets: it then takes a snapshot.",
        )


_WAIT = 0.5


class _RecordPlace(NamedTuple):
    """Where a record stands: in which transaction, and as which of its records."""

    lsn: Lsn
    record: int

    @property
    def offset(self) -> dict[str, str | int]:
        """The place as a position of Connect's."""
        return {"lsn": lsn_text(self.lsn), "record": self.record}


class _Transaction(NamedTuple):
    """A transaction that was read whole."""

    last: _RecordPlace
    end: Lsn


class _Changes:
    """What one poll reads: columns, where all of it is new rows of one table; records otherwise."""

    def __init__(self, partition: Position, translator: Translator) -> None:
        self._partition, self._translator = partition, translator
        self._records: list[SourceRecord] = []
        #: New rows of one table that are no records yet.
        self._run: list[tuple[Insert, ChangeTime, _RecordPlace]] = []
        #: The place of the last record.
        self.last: _RecordPlace | None = None

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self._records) + len(self._run)

    def add(
        self, change: Change, moment: ChangeTime, place: _RecordPlace, given: _RecordPlace
    ) -> _RecordPlace:
        """Take a change, without records that were given before; return the last one's place."""
        if isinstance(change, Insert) and self._takes(change):
            place = _RecordPlace(place.lsn, place.record + 1)
            if place > given:
                self._run.append((change, moment, place))
                self.last = place
            return place
        self.end_run()
        for made in self._translator.translate(change, moment):
            place = _RecordPlace(place.lsn, place.record + 1)
            if place > given:
                self._place(made, place)
        return place

    def _takes(self, change: Insert) -> bool:
        if self._run:
            return change.relation == self._run[0][0].relation
        return not self._records and self._translator.takes_columns(change.relation)

    def _place(self, made: Made, place: _RecordPlace) -> None:
        self._records.append(made.placed(self._partition, place.offset))
        self.last = place

    def end_run(self) -> None:
        """Make records of new rows, as something else follows."""
        for change, moment, place in self._run:
            for made in self._translator.translate(change, moment):
                self._place(made, place)
        self._run = []

    def given(self) -> Sequence[SourceRecord] | SourceBatch:
        """Return everything."""
        if not self._run:
            return self._records
        changes, moments, places = zip(*self._run, strict=True)
        made = self._translator.new_rows(changes, moments)
        return made.placed(self._partition, places[-1].offset)


class LogicalFeed:
    """Reads the tables of one publication through one slot.

    A record's position is the place of its transaction's commit in the log, and its number within
    the transaction.  The server hears that it may forget a transaction only after its last record
    was committed; what it sends again after a restart is recognised by its place and left out.

    Parameters
    ----------
    config
        The task's config.
    tables
        The tables to read.
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
        self._heartbeat = config["heartbeat.interval.ms"].total_seconds()
        self._slot = config["slot.name"] or default_name(context.connector)
        self._publication = config["publication.name"] or self._slot
        self.partition = {"slot": self._slot}
        self._words = connection_words(config, f"headrace {context.connector}")
        self._stream: ReplicationConnection | None = None
        self._snapshot: Iterator[Sequence[SourceRecord] | SourceBatch] | None = None
        self._is_connected = False
        self._connection = connect(self._words)
        try:
            self._begin()
        except BaseException:
            self._connection.close()
            raise
        self._is_connected = True

    def _begin(self) -> None:
        config, connection = self._config, self._connection
        check_server(connection)
        create = config["publication.autocreate"]
        ensure_publication(connection, self._publication, self._tables, create=create)
        self._committed = self._last_committed()
        #: The last record that was given, by this life or an earlier one.
        self._given = self._committed
        free_slot(connection, self._slot)
        if self._committed.lsn:
            check_position(connection, self._committed.lsn)
            self._require_slot()
        elif config["snapshot.mode"] == "initial":
            self._snapshot = self._snapshotted()
        elif not slot_exists(connection, self._slot):
            with ReplicationConnection(self._words) as replication:
                replication.create_slot(self._slot)
        self._reset()

    def _reset(self) -> None:
        #: Between a transaction's begin and its commit: its moment.
        self._moment: ChangeTime | None = None
        self._place = _RecordPlace(0, 0)
        self._unconfirmed: deque[_Transaction] = deque()
        self._confirmed: Lsn = 0
        self._reported = 0.0

    def poll(self) -> Sequence[SourceRecord] | SourceBatch | None:
        """Return rows of the snapshot, then changes."""
        with outages_told():
            if not self._is_connected:
                self._reconnect()
            try:
                return self._changes() if self._snapshot is None else self._from_snapshot()
            except psycopg.OperationalError:
                self._break_off()
                raise

    def commit(self) -> None:
        """Let the server forget the transactions that are committed to the last record."""
        self._committed = self._last_committed()
        # The server hears of it with the next poll.
        self._reported = 0.0

    def _last_committed(self) -> _RecordPlace:
        position = self._context.offsets.get(self.partition) or {}
        if "lsn" not in position:
            return _RecordPlace(0, 0)
        return _RecordPlace(lsn_number(position["lsn"]), position["record"])

    def close(self) -> None:
        """End the connections; drop the slot where that is wanted."""
        self._end_reading()
        if self._config["slot.drop.on.stop"] and self._is_connected:
            self._drop_slot()
        self._connection.close()

    def _end_reading(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()  # type: ignore[attr-defined]  # it is a generator
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _from_snapshot(self) -> Sequence[SourceRecord] | SourceBatch | None:
        assert self._snapshot is not None
        found = next(self._snapshot, None)
        if found is None:
            self._snapshot = None
        return found

    def _snapshotted(self) -> Iterator[Sequence[SourceRecord] | SourceBatch]:
        # What an earlier life began is begun anew: its slot's snapshot is gone.
        self._drop_slot()
        with ReplicationConnection(self._words) as replication:
            slot = replication.create_slot(self._slot)
            with connect(self._words) as reader:
                yield from snapshot(
                    reader,
                    self._translator(),
                    self._tables,
                    slot,
                    self.partition,
                    self._types(),
                    self._limit,
                )
        self._given = _RecordPlace(slot.consistent_point, 0)

    def _changes(self) -> Sequence[SourceRecord] | SourceBatch:
        if self._stream is None:
            self._stream = self._started()
        found = _Changes(self.partition, self._translator_now)
        self._report(self._stream)
        for arrived in self._stream.messages(_WAIT):
            if isinstance(arrived, XLogData):
                message = decode(arrived.data)
                if message is not None:
                    self._take(message, found)
            else:
                self._alive(arrived, self._stream)
            if found.count >= self._limit:
                break
        self._given = found.last or self._given
        return found.given()

    def _started(self) -> ReplicationConnection:
        stream = ReplicationConnection(self._words)
        try:
            free_slot(self._connection, self._slot)
            self._translator_now = self._translator()
            stream.start(self._slot, self._publication, 0)
        except BaseException:
            stream.close()
            raise
        return stream

    def _take(self, message: Message, found: _Changes) -> None:
        if isinstance(message, Relation):
            # Rows of the table as it was are told first.
            found.end_run()
            self._translator_now.learn(message)
        elif isinstance(message, Begin):
            self._moment = ChangeTime.of(message)
            self._place = _RecordPlace(message.commit_lsn, 0)
        elif isinstance(message, CommitMessage):
            self._moment = None
            self._unconfirmed.append(_Transaction(self._place, message.end_lsn))
        else:
            assert self._moment is not None
            self._place = found.add(message, self._moment, self._place, self._given)

    def _alive(self, sign: KeepAlive, stream: ReplicationConnection) -> None:
        # All that came before it has been given and committed, so none of it is needed again:
        # the log of a database whose other tables change may be forgotten too.
        self._settle()
        if self._moment is None and not self._unconfirmed:
            self._confirmed = max(self._confirmed, sign.server_end)
        if sign.reply_wanted:
            stream.confirm(self._confirmed)

    def _report(self, stream: ReplicationConnection) -> None:
        now = time.monotonic()
        if now - self._reported >= self._heartbeat:
            self._reported = now
            self._settle()
            stream.confirm(self._confirmed, reply=True)

    def _settle(self) -> None:
        """Find how far the server may forget: to the first transaction that is not committed."""
        waiting = self._unconfirmed
        while waiting and (waiting[0].last.record == 0 or waiting[0].last <= self._committed):
            self._confirmed = waiting.popleft().end

    def _break_off(self) -> None:
        """Let go of all connections, where one is lost."""
        self._is_connected = False
        self._end_reading()
        self._connection.close()
        self._reset()

    def _reconnect(self) -> None:
        self._connection = connect(self._words)
        try:
            if self._snapshot is None:
                self._require_slot()
            else:
                # Its snapshot is gone: what was given comes again.
                self._begin()
        except BaseException:
            self._connection.close()
            raise
        self._is_connected = True

    def _translator(self) -> Translator:
        config = self._config
        return Translator(
            self._connection,
            self._types(),
            lambda table: topic_of(config, table),
            frozenset(self._tables),
            self._context.logger,
            envelope=config["output.format"] == "envelope",
            tombstones=config["tombstones.on.delete"],
            unchanged=config["unchanged.values"],
        )

    def _types(self) -> TypeBook:
        config = self._config
        options = TypeOptions(config["numeric.mapping"], config["timestamp.mapping"])
        return TypeBook(self._connection, options)

    def _require_slot(self) -> None:
        if not slot_exists(self._connection, self._slot):
            raise StateError(
                f"The replication slot {self._slot} is gone, and with it the changes since"
                f" {lsn_text(self._given.lsn)}.",
                hint="Stop the connector and reset its offsets: it then takes a new snapshot.",
            )

    def _drop_slot(self) -> None:
        if slot_exists(self._connection, self._slot):
            free_slot(self._connection, self._slot)
            self._connection.execute("SELECT pg_drop_replication_slot(%s)", (self._slot,))
