"""The task of every SQL sink: rows and offsets in one transaction."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.connect import Config, Queue, SchemaError, SinkRecord, SinkTask
from headrace.connect.connectors.sql.changes import Change, plan
from headrace.connect.connectors.sql.layouts import table_name
from headrace.connect.connectors.sql.mapping import MappingOptions, RowMapper
from headrace.connect.connectors.sql.offsets import OffsetTable
from headrace.connect.connectors.sql.tables import Tables
from headrace.errors import ConnectionFailedError, HeadraceError, ProcessingError, StateError

if TYPE_CHECKING:
    from headrace.connect.connectors.sql.database import SqlDatabase

__all__ = ["SqlSinkTask"]


class SqlSinkTask(SinkTask):
    """Gathers rows in `put`, and writes them with their offsets in `flush`, in one transaction.

    A subclass gives the database, by :meth:`connect`.
    """

    _database: SqlDatabase

    @abstractmethod
    def connect(self, config: Config, owner: str) -> SqlDatabase:
        """Open the database; ``owner`` names the session, for :meth:`SqlDatabase.evict`."""

    def start(self, config: Config) -> None:
        """Connect, and make the table of offsets where it is missing."""
        self._config = config
        self._mode = config["insert.mode"]
        owner = f"headrace-{secrets.token_hex(8)}"
        self._database = self.connect(config, owner)
        self._mapper = RowMapper(MappingOptions.of(config))
        self._tables = Tables(
            self._database, create=config["auto.create"], evolve=config["auto.evolve"]
        )
        self._offsets = self._offset_table(owner) if config["exactly.once"] else None
        self._changes: list[Change] = []
        #: Behind the last record of each queue that is in the database.
        self._done: dict[Queue, int] = {}
        #: Behind the last record of each queue that was gathered.
        self._gathered: dict[Queue, int] = {}
        #: Whether the last transaction failed, or its answer was lost.
        self._in_doubt = False
        if self._offsets is not None:
            self._retried(lambda _: self._make_offset_table())

    def _make_offset_table(self) -> None:
        assert self._offsets is not None
        with self._database.transaction():
            self._database.lock_layouts()
            self._offsets.create()

    def _offset_table(self, owner: str) -> OffsetTable:
        name = table_name(self._config["offsets.table"], "")
        sink = self._config["offsets.name"] or self.context.connector
        return OffsetTable(self._database, name, sink, owner, self.context.generation)

    def open(self, queues: Collection[Queue]) -> None:
        """Take queues over from whatever task had them before."""
        self._drop(queues)
        if self._offsets is not None and queues:
            self._retried(lambda _: self._claim(queues))

    def _claim(self, queues: Collection[Queue]) -> None:
        assert self._offsets is not None
        # A predecessor that was stopped in mid-transaction would keep its locks.
        self._database.evict(self._offsets.owners(queues))
        with self._database.transaction():
            self._offsets.claim(queues)
            self._done.update(self._offsets.read(queues))

    def offsets(self) -> Mapping[Queue, int] | None:
        """Give the offsets that the database keeps."""
        if self._offsets is None:
            return None
        queues = self.context.queues
        return {queue: offset for queue, offset in self._done.items() if queue in queues}

    def close(self, queues: Collection[Queue]) -> None:
        """Forget queues, and rows that were not flushed: they are read again."""
        self._drop(queues)
        for queue in queues:
            self._done.pop(queue, None)

    def _drop(self, queues: Collection[Queue]) -> None:
        gone = frozenset(queues)
        self._changes = [one for one in self._changes if one.record.queue not in gone]
        for queue in gone:
            self._gathered.pop(queue, None)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather rows; those that are gathered or in the database already are left out."""
        done, gathered = self._done, self._gathered
        for record in records:
            queue = record.queue
            if record.offset < max(done.get(queue, 0), gathered.get(queue, 0)):
                continue
            gathered[queue] = record.offset + 1
            try:
                change = self._mapper.change(record)
            except SchemaError as error:
                self.context.report(record, error)
            else:
                self._changes.append(change)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the rows and the offsets, all or nothing; after an outage the same call comes again."""
        changes = self._changes
        moved: Mapping[Queue, int] = {}
        if self._offsets is not None:
            moved = {queue: to for queue, to in offsets.items() if to > self._done.get(queue, -1)}
            # What stands behind the offsets comes again.
            changes = [one for one in changes if one.record.offset < moved.get(one.record.queue, 0)]
            self._changes = changes
        if moved or changes:
            self._retried(lambda again: self._write(changes, moved, again=again))
            self._done.update(moved)
        self._changes = []
        self._gathered.clear()

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

    def _write(self, changes: list[Change], offsets: Mapping[Queue, int], *, again: bool) -> None:
        # Tables change in transactions of their own, so that no row's lock waits for a table's.
        self._prepare(changes)
        with self._database.transaction():
            if self._offsets is not None:
                if again:
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

    def _retried(self, act: Callable[[bool], None]) -> None:
        """Do something again while its failures pass; it learns whether it is done again."""
        pause = self._config["connection.backoff.ms"].total_seconds()
        attempts = self._config["connection.attempts"]
        for attempt in range(1, attempts + 1):
            if self._in_doubt:
                self._reconnect()
            try:
                act(self._in_doubt)
            except HeadraceError:
                raise
            except Exception as error:
                self._in_doubt = True
                if not self._may_pass(error, attempt):
                    raise
                self.context.logger.warning("attempt %d of %d failed: %s", attempt, attempts, error)
                wait = pause * 2 ** (attempt - 1)
                if attempt == attempts or self.context.stopping.wait(wait):
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
    record = change.record
    wrapped = ProcessingError(
        f"Table {change.table} refuses record {record.offset} of queue {record.queue.queue_id} of"
        f" topic {record.queue.topic}: {str(error).strip()}",
        hint="Correct the record's source or the table; with errors.tolerance=all such records go"
        " to the dead-letter topic and the others are written.",
    )
    wrapped.__cause__ = error
    return wrapped
