"""The table in which a sink keeps its offsets, and the fence that keeps zombies out of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.connect import Config, Queue
from headrace.connect.connectors.sql.layouts import TableName, table_name
from headrace.errors import FencedError

if TYPE_CHECKING:
    from headrace.connect.connectors.sql.database import SqlDatabase
    from headrace.connect.records import Position

__all__ = ["OffsetTable", "alter_sink_offsets"]


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
        # Who may not create tables may use one that is there.
        if self.database.layout(self.name) is not None:
            return
        number, text = self.database.big_integer, self.database.text
        self.database.execute(
            f"CREATE TABLE IF NOT EXISTS {self._named} (sink {text} NOT NULL, topic {text} NOT NULL,"
            f" broker {text} NOT NULL, queue_id {number} NOT NULL, next_offset {number},"
            f" generation {number} NOT NULL, owner {text} NOT NULL,"
            " PRIMARY KEY (sink, topic, broker, queue_id))"
        )

    def owners(self, queues: Collection[Queue]) -> list[str]:
        """Give the marks of other tasks that had these queues before."""
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
        """Give the next offset of each of these queues that has one."""
        return {queue: offset for queue, offset in self.all().items() if queue in queues}

    def all(self) -> dict[Queue, int]:
        """Give the next offset of every queue of the sink."""
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


def alter_sink_offsets(
    database: SqlDatabase,
    config: Config,
    connector: str,
    offsets: Sequence[tuple[Position, Position | None]],
) -> None:
    """Set offsets that a sink's database keeps, as REST gives them; ``None`` forgets one."""
    name = table_name(config["offsets.table"], "")
    table = OffsetTable(database, name, config["offsets.name"] or connector, "", 0)
    with database.transaction():
        database.lock_layouts()
        table.create()
        table.alter({_queue(where): _offset(to) for where, to in offsets})


def _queue(where: Position) -> Queue:
    return Queue(
        str(where["rocketmq_topic"]),
        str(where["rocketmq_broker"]),
        int(where["rocketmq_queue_id"]),
    )


def _offset(to: Position | None) -> int | None:
    return None if to is None else int(to["rocketmq_queue_offset"])
