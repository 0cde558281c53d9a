"""The task of every SQL sink: rows and offsets in one transaction."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.backoff import Backoff
from headrace.connect import (
    Config,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkConnector,
    SinkRecord,
)
from headrace.connect.connectors.offsets import GatheringSinkTask, set_by_hand
from headrace.connect.connectors.sql.mapping import (
    Adapter,
    Change,
    MappingOptions,
    RowMapper,
    SqlColumn,
    SqlDatabase,
    TableLayout,
    TableName,
    WritableRows,
    plan,
    sink_problems,
    table_name,
)
from headrace.connect.connectors.texts import place_of
from headrace.errors import (
    ConnectionFailedError,
    FencedError,
    HeadraceError,
    ProcessingError,
    StateError,
)

if TYPE_CHECKING:
    from headrace.connect.records import Position


# The table in which a sink keeps its offsets, and the fence that keeps zombies out of it.


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """Offsets of one connector's queues, a row each, in the database that takes its rows.

    A task that opens a queue writes its own mark, `owner`, into the queue's row.  Each of its
    transactions first moves the offset *where the mark is still its own*: that locks the row until
    the commit, and finds nothing once somebody else has taken the queue over.

    Parameters
    ----------
    database
        The connection that writes the rows too.
    name
        The table.
    sink
        The name under which the offsets are kept.
    owner
        The mark of this task, different for each of its lives.
    generation
        The number of the assignment that the task belongs to: it only rises.
    """

    database: SqlDatabase
    name: TableName
    sink: str
    owner: str
    generation: int

    def create(self) -> None:
        """Create the table where it is missing."""
        number, text = self.database.big_integer, self.database.text
        with self.database.transaction():
            self.database.lock_layouts()
            # Who may not create tables may use one that is there.
            if self.database.layout(self.name) is None:
                self.database.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._named} (sink {text} NOT NULL, topic {text}"
                    f" NOT NULL, broker {text} NOT NULL, queue_id {number} NOT NULL,"
                    f" next_offset {number}, generation {number} NOT NULL, owner {text} NOT NULL,"
                    " PRIMARY KEY (sink, topic, broker, queue_id))"
                )

    def owners(self, queues: Collection[Queue]) -> list[str]:
        """Return the marks of other tasks that had these queues before."""
        rows = self.database.execute(
            f"SELECT topic, broker, queue_id, owner FROM {self._named}"
            f" WHERE sink = {self.database.placeholder} AND generation <= {self.database.placeholder}",
            (self.sink, self.generation),
        )
        marks = {str(row[3]) for row in rows if Queue(*row[:3]) in queues}
        # Offsets that were set by hand belong to nobody.
        return sorted(marks - {self.owner, ""})

    def claim(self, queues: Collection[Queue]) -> None:
        """Make queues this task's own.

        Raises
        ------
        FencedError
            A task of a later generation has one of them.
        """
        database, mark = self.database, self.database.placeholder
        for queue in sorted(queues):
            rows = database.execute(
                f"INSERT INTO {self._named} AS mine"
                " (sink, topic, broker, queue_id, next_offset, generation, owner)"
                f" VALUES ({mark}, {mark}, {mark}, {mark}, NULL, {mark}, {mark})"
                " ON CONFLICT (sink, topic, broker, queue_id) DO UPDATE"
                " SET generation = excluded.generation, owner = excluded.owner"
                " WHERE mine.generation <= excluded.generation RETURNING 1",
                (self.sink, *queue, self.generation, self.owner),
            )
            if not rows:
                raise self._fenced(queue)

    def read(self, queues: Collection[Queue]) -> dict[Queue, int]:
        """Return the next offset of each of these queues that has one."""
        return {queue: offset for queue, offset in self.all().items() if queue in queues}

    def all(self) -> dict[Queue, int]:
        """Return the next offset of every queue of the sink."""
        rows = self.database.execute(
            f"SELECT topic, broker, queue_id, next_offset FROM {self._named}"
            f" WHERE sink = {self.database.placeholder} AND next_offset IS NOT NULL",
            (self.sink,),
        )
        return {Queue(str(row[0]), str(row[1]), int(row[2])): int(row[3]) for row in rows}

    def store(self, offsets: Mapping[Queue, int]) -> None:
        """Move the offsets, in the transaction of the rows; the first thing that it does.

        Raises
        ------
        FencedError
            Another task has taken a queue over.
        """
        mark = self.database.placeholder
        # In one order everywhere, so that two tasks never wait for each other.
        for queue, offset in sorted(offsets.items()):
            rows = self.database.execute(
                f"UPDATE {self._named} SET next_offset = {mark} WHERE sink = {mark}"
                f" AND topic = {mark} AND broker = {mark} AND queue_id = {mark} AND owner = {mark}"
                " RETURNING 1",
                (offset, self.sink, *queue, self.owner),
            )
            if not rows:
                raise self._fenced(queue)

    def alter(self, offsets: Mapping[Queue, int | None]) -> None:
        """Set offsets by hand; ``None`` forgets one."""
        mark = self.database.placeholder
        for queue, offset in sorted(offsets.items(), key=lambda item: item[0]):
            self.database.execute(
                f"INSERT INTO {self._named}"
                " (sink, topic, broker, queue_id, next_offset, generation, owner)"
                f" VALUES ({mark}, {mark}, {mark}, {mark}, {mark}, 0, '')"
                " ON CONFLICT (sink, topic, broker, queue_id) DO UPDATE"
                " SET next_offset = excluded.next_offset, owner = ''",
                (self.sink, *queue, offset),
            )

    @property
    def _named(self) -> str:
        return self.database.named(self.name)

    def _fenced(self, queue: Queue) -> FencedError:
        return FencedError(
            f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} was taken over by"
            f" another task of the sink {self.sink}: this one, of generation {self.generation},"
            " may not write any more.",
            hint="Nothing of its last transaction is in the database. If no other task of the"
            " connector runs, two connectors share offsets.name: give each its own.",
        )


# The tables that a sink writes to: looked up once, created and widened where that is wanted.


@dataclass(slots=True)
class TableCache:
    """What is known of the tables of one database."""

    database: SqlDatabase
    create: bool = False
    evolve: bool = False
    _layouts: dict[TableName, TableLayout] = field(default_factory=dict)
    #: Shapes of rows that have been seen to fit.
    _fitting: set[tuple[TableName, tuple[str, ...]]] = field(default_factory=set)

    def fits(self, change: Change) -> bool:
        """Whether the table of a change is known to have its columns."""
        return (change.table, change.columns) in self._fitting

    def forget(self) -> None:
        """Look every table up again: one is not as it was."""
        self._layouts.clear()
        self._fitting.clear()

    def prepare(self, change: Change, wanted: Sequence[SqlColumn]) -> None:
        """Make sure that a table has the columns of a change.

        Raises
        ------
        SchemaError
            It has not, and may not be created or widened.
        """
        layout = self._layouts.get(change.table) or self.database.layout(change.table)
        if layout is None or not layout.names.issuperset(one.name for one in wanted):
            self._change_table(change, wanted)
            layout = self.database.layout(change.table)
        if layout is None:
            message = f"Table {change.table} is gone right after it was there."
            raise SchemaError(message, hint="Let nobody drop it while the sink runs.")
        self._layouts[change.table] = layout
        # Null fields of records without a schema get their column when they get a value.
        if layout.names.issuperset(change.columns):
            self._fitting.add((change.table, change.columns))

    def _change_table(self, change: Change, wanted: Sequence[SqlColumn]) -> None:
        database = self.database
        with database.transaction():
            database.lock_layouts()
            # Another task may have been here first.
            layout = database.layout(change.table)
            if layout is None:
                self._may(change, allowed=self.create, what="does not exist", key="auto.create")
                database.create(change.table, wanted)
                return
            missing = [one for one in wanted if one.name not in layout.names]
            if missing:
                names = ", ".join(one.name for one in missing)
                what = f"has no column {names}"
                self._may(change, allowed=self.evolve, what=what, key="auto.evolve")
                _check_no_key(change, missing)
                # Rows that are there have no value of a new column.
                optional = [SqlColumn(one.name, one.schema.as_optional()) for one in missing]
                database.add(change.table, optional)

    def _may(self, change: Change, *, allowed: bool, what: str, key: str) -> None:
        if not allowed:
            raise SchemaError(
                f"Table {change.table} {what}, which {place_of(change.record)} needs.",
                hint=f"Make it by hand, or set {key}=true.",
            )

    def adapted(self, step: WritableRows) -> WritableRows:
        """Return a step with values as the columns of its table take them."""
        layout = self._layouts[step.table]
        columns = tuple(name for name in step.columns if name in layout.names)
        if columns != step.columns:
            pick = [step.columns.index(name) for name in columns]
            step.rows = [tuple(row[at] for at in pick) for row in step.rows]
        adapters = [self.database.adapter(layout.columns[name]) for name in columns]
        for at, adapter in enumerate(adapters):
            if adapter is not None:
                step.rows = [_changed(row, at, adapter) for row in step.rows]
        return WritableRows(step.action, step.table, step.keys, columns, step.rows)


def _changed(row: tuple[Any, ...], at: int, adapter: Adapter) -> tuple[Any, ...]:
    value = row[at]
    changed = None if value is None else adapter(value)
    return row if changed is value else (*row[:at], changed, *row[at + 1 :])


def _check_no_key(change: Change, missing: Sequence[SqlColumn]) -> None:
    for column in missing:
        if column.key:
            raise SchemaError(
                f"Table {change.table} has no column {column.name} of the primary key, and a key"
                " cannot be added to a table.",
                hint="Correct pk.fields, or add the column and the key by hand.",
            )


class SqlSinkTask(GatheringSinkTask[Change]):
    """Writes rows and their offsets in one transaction.

    A subclass gives the database, by :meth:`connect`.
    """

    _database: SqlDatabase

    @abstractmethod
    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open the database; ``owner`` names the session, for :meth:`SqlDatabase.evict`."""

    def start(self, config: Config) -> None:
        """Connect, and make the table of offsets where it is missing."""
        super().start(config)
        self._mode = config["insert.mode"]
        owner = f"headrace-{secrets.token_hex(8)}"
        self._database = self.connect(config, owner)
        self._mapper = RowMapper(MappingOptions.of(config))
        self._tables = TableCache(
            self._database, create=config["auto.create"], evolve=config["auto.evolve"]
        )
        self._offsets = self._offset_table(owner)
        #: Whether the last transaction failed, or its answer was lost.
        self._in_doubt = False
        if self._exactly:
            self._retried(self._offsets.create)

    def _offset_table(self, owner: str) -> OffsetTable:
        name = table_name(self._config["offsets.table"], "")
        sink = self._config["offsets.name"] or self.context.connector
        return OffsetTable(self._database, name, sink, owner, self.context.generation)

    def take_over(self, queues: Collection[Queue]) -> None:
        """Claim queues in the table of offsets."""
        self._retried(lambda: self._claim(queues))

    def _claim(self, queues: Collection[Queue]) -> None:
        # A predecessor that was stopped in mid-transaction would keep its locks.
        self._database.evict(self._offsets.owners(queues))
        with self._database.transaction():
            self._offsets.claim(queues)
            self._done.update(self._offsets.read(queues))

    def gathered(self, record: SinkRecord) -> Change:
        """Return what a record does to which row."""
        return self._mapper.change(record)

    def write(self, gathered: list[Change], offsets: Mapping[Queue, int]) -> None:
        """Write the rows and the offsets in one transaction."""
        if self._exactly:
            placed = [(one, one.record) for one in gathered]
            gathered[:] = [one for one, at in placed if at.offset < offsets.get(at.queue, 0)]
        self._retried(lambda: self._write(gathered, offsets))

    def stop(self) -> None:
        """Close the connection; rows that were not flushed are not written."""
        if hasattr(self, "_database"):
            self._database.close()

    def healthy(self) -> bool:
        """Whether the database answers."""
        try:
            self._database.ping()
        except Exception as error:
            if self._database.judge(error) in {"again", "lost"}:
                raise _away(error) from error
            raise
        return True

    def _write(self, changes: list[Change], offsets: Mapping[Queue, int]) -> None:
        # Tables change in transactions of their own, so that no row's lock waits for a table's.
        self._prepare(changes)
        with self._database.transaction():
            if self._exactly:
                if self._in_doubt:
                    kept = self._offsets.read(offsets)
                    if kept == dict(offsets):
                        # The answer to the commit was lost, not the commit.
                        return
                    self._check_memory(kept)
                self._offsets.store(offsets)
            self._apply(changes)

    def _check_memory(self, kept: Mapping[Queue, int]) -> None:
        """Raise where the database has come back without what it had confirmed."""
        for queue, offset in kept.items():
            if offset < (done := self._done.get(queue, 0)):
                raise StateError(
                    f"The database had confirmed queue {queue.queue_id} of topic {queue.topic} up to"
                    f" offset {done}, and has it up to {offset} now.",
                    hint="The task goes on from there when it is started again: restart it, or set"
                    " restart.max.attempts.",
                )

    def _prepare(self, changes: list[Change]) -> None:
        fitting = []
        for change in changes:
            try:
                if not self._tables.fits(change):
                    self._tables.prepare(change, self._mapper.columns(change))
            except SchemaError as error:
                self.context.report(change.record, error)
            else:
                fitting.append(change)
        changes[:] = fitting

    def _apply(self, changes: Sequence[Change]) -> None:
        """Write changes; where the database refuses some, find them by halves and report them."""
        if not changes:
            return
        try:
            with self._database.transaction():
                for step in plan(changes, self._mode):
                    self._database.write(self._tables.adapted(step))
                self._database.check_constraints()
        except Exception as error:
            if self._database.judge(error) != "row":
                raise
            if len(changes) == 1:
                self.context.report(changes[0].record, _refused(changes[0], error))
                return
            middle = len(changes) // 2
            self._apply(changes[:middle])
            self._apply(changes[middle:])

    def _retried(self, act: Callable[[], None]) -> None:
        """Do something again while its failures pass."""
        backoff = Backoff(self._config["connection.backoff.ms"].total_seconds())
        attempts = self._config["connection.attempts"]
        for attempt in range(1, attempts + 1):
            if self._in_doubt:
                self._reconnect()
            try:
                act()
            except HeadraceError:
                raise
            except Exception as error:
                self._in_doubt = True
                if not self._may_pass(error, attempt):
                    raise
                self.context.logger.warning("attempt %d of %d failed: %s", attempt, attempts, error)
                if attempt == attempts or self.context.stopping.wait(backoff.next()):
                    raise _away(error) from error
            else:
                self._in_doubt = False
                return

    def _may_pass(self, error: Exception, attempt: int) -> bool:
        verdict = self._database.judge(error)
        if verdict == "layout":
            self._tables.forget()
            return attempt == 1
        return verdict in {"again", "lost"}

    def _reconnect(self) -> None:
        try:
            self._database.reconnect()
        except Exception as error:
            # The next attempt meets the same, and counts.
            if self._database.judge(error) not in {"again", "lost"}:
                raise
            self.context.logger.warning("no connection to the database: %s", error)


def _away(error: Exception) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"the database does not take it now: {str(error).strip()}",
        hint="Check connection.url, the network and the database; it is tried again.",
    )


def _refused(change: Change, error: Exception) -> ProcessingError:
    wrapped = ProcessingError(
        f"Table {change.table} refuses {place_of(change.record)}: {str(error).strip()}",
        hint="Correct the record's source or the table; with errors.tolerance=all such records go"
        " to the dead-letter topic and the others are written.",
    )
    wrapped.__cause__ = error
    return wrapped


class SqlSinkConnector(SinkConnector):
    """Writes topics to tables of a database, which a subclass opens."""

    @abstractmethod
    def database(self, config: Config) -> SqlDatabase:
        """Open the database to look after the offsets that it keeps."""

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name keys that contradict each other."""
        return sink_problems(config)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that the database keeps."""
        if not config["exactly.once"]:
            return False
        name = config["offsets.name"] or config.texts.get("name") or self.context.connector
        with closing(self.database(config)) as database:
            table = OffsetTable(database, table_name(config["offsets.table"], ""), name, "", 0)
            with database.transaction():
                table.create()
                table.alter(set_by_hand(offsets))
        return True
