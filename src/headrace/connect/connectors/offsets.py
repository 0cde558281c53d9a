"""Offsets of queues that a sink keeps beside its data, and the task that writes both at once."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import Config, Queue, SchemaError, SinkBatch, SinkRecord, SinkTask
from headrace.errors import ConnectorConfigError, MessageRejectedError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# Files that are whole on disk, whatever ends the process.


def write_whole(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a file so that after a crash either its old or its new content is there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a"), b"content")
    ...     Path(folder, "a").read_bytes()
    b'content'
    """
    draft = path.with_name(f".{path.name}.new")
    write_synced(draft, content)
    draft.replace(path)
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes | pa.Buffer) -> None:
    """Write a file whose content is on disk before this returns; its name may not be."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: files that were made, renamed or removed there."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class KeptOffsets(msgspec.Struct, frozen=True):
    """The next offset of each queue, as JSON has it.

    >>> kept = KeptOffsets.of({Queue("lines", "broker-a", 0): 7})
    >>> kept.queues
    [('lines', 'broker-a', 0, 7)]
    >>> kept.mapping()
    {Queue(topic='lines', broker='broker-a', queue_id=0): 7}
    """

    queues: list[tuple[str, str, int, int]] = []

    @classmethod
    def of(cls, offsets: Mapping[Queue, int]) -> KeptOffsets:
        """Take offsets to keep."""
        return cls([(*queue, offset) for queue, offset in sorted(offsets.items())])

    def mapping(self) -> dict[Queue, int]:
        """Return the offsets by their queues."""
        return {
            Queue(topic, broker, number): offset for topic, broker, number, offset in self.queues
        }


def newest(kept: Iterable[Mapping[Queue, int]]) -> dict[Queue, int]:
    """Join what several tasks have kept: of each queue, the highest offset.

    >>> queue = Queue("lines", "broker-a", 0)
    >>> newest([{queue: 7}, {queue: 9}])[queue]
    9
    """
    joined: dict[Queue, int] = {}
    for offsets in kept:
        for queue, offset in offsets.items():
            joined[queue] = max(offset, joined.get(queue, 0))
    return joined


class Progress:
    """How far a sink has taken records, so that it takes none twice.

    Parameters
    ----------
    offsets
        The next offset of each queue.

    Examples
    --------
    >>> queue = Queue("lines", "broker-a", 0)
    >>> records = [SinkRecord(topic="lines", queue=queue, offset=n, value=n) for n in range(3)]
    >>> progress = Progress({queue: 1})
    >>> [record.value for record in progress.fresh(records)]
    [1, 2]
    >>> progress.take(records)
    >>> progress.fresh(records)
    []
    """

    def __init__(self, offsets: Mapping[Queue, int]) -> None:
        self._next = dict(offsets)

    def fresh(self, records: Sequence[SinkRecord]) -> list[SinkRecord]:
        """Return the records that are new."""
        return [one for one in records if one.offset >= self._next.get(one.queue, 0)]

    def take(self, records: Iterable[SinkRecord]) -> None:
        """Count records as taken: once nothing can refuse them any more."""
        for record in records:
            self._next[record.queue] = max(record.offset + 1, self._next.get(record.queue, 0))

    def fresh_rows(self, batch: SinkBatch) -> SinkBatch:
        """Return the rows that are new."""
        first = self._next.get(batch.queue, 0)
        if len(batch) == 0 or batch.offset[0].as_py() >= first:
            return batch
        row = pc.index(pc.greater_equal(batch.offset, first), True).as_py()
        return batch[row if row >= 0 else len(batch) :]

    def take_rows(self, batch: SinkBatch) -> None:
        """Count rows as taken."""
        if len(batch):
            self._next[batch.queue] = batch.offset[-1].as_py() + 1


def set_by_hand(offsets: Sequence[tuple[Position, Position | None]]) -> dict[Queue, int | None]:
    """Read offsets as REST gives them; ``None`` forgets one.

    Raises
    ------
    ConnectorConfigError
        Where they are not of that form.

    Examples
    --------
    >>> where = {"rocketmq_topic": "t", "rocketmq_broker": "b", "rocketmq_queue_id": 0}
    >>> set_by_hand([(where, {"rocketmq_queue_offset": 5})])
    {Queue(topic='t', broker='b', queue_id=0): 5}
    """
    try:
        return {
            Queue(
                str(where["rocketmq_topic"]),
                str(where["rocketmq_broker"]),
                int(where["rocketmq_queue_id"]),
            ): None if to is None else int(to["rocketmq_queue_offset"])
            for where, to in offsets
        }
    except (KeyError, TypeError, ValueError) as error:
        message = f"An offset of a queue cannot be read: {error!r}."
        hint = (
            "Write the partition as rocketmq_topic, rocketmq_broker, rocketmq_queue_id, and the "
            "offset as rocketmq_queue_offset."
        )
        raise ConnectorConfigError(message, hint=hint) from None


def changed(kept: Mapping[Queue, int], changes: Mapping[Queue, int | None]) -> dict[Queue, int]:
    """Return offsets with changes applied.

    >>> queue = Queue("t", "b", 0)
    >>> changed({queue: 7}, {queue: None})
    {}
    """
    merged: dict[Queue, int | None] = {**kept, **changes}
    return {queue: offset for queue, offset in merged.items() if offset is not None}


T = TypeVar("T")


class GatheringSinkTask(SinkTask, Generic[T]):
    """Gathers records in `put`, and writes them in `flush`, with their offsets where it keeps them.

    The connector's key ``exactly.once``, where it has one, says whether they are kept.
    """

    def start(self, config: Config) -> None:
        """Begin with nothing gathered."""
        self._config = config
        self._exactly: bool = config.get("exactly.once", False)
        #: Behind the last record of each queue that was written with its offset.
        self._done: dict[Queue, int] = {}
        self._begin_anew()

    @abstractmethod
    def gathered(self, record: SinkRecord) -> T | None:
        """Return what to write of a record, if anything; raise what is reported of a bad one."""

    @abstractmethod
    def write(self, gathered: list[T], offsets: Mapping[Queue, int]) -> None:
        """Write what stands below the offsets, and these, all or nothing; all, where none are kept.

        After an outage the same call comes again, with what it has left in the list.
        """

    def take_over(self, queues: Collection[Queue]) -> None:
        """Make queues this task's own, and set `_done` to their offsets."""
        raise NotImplementedError

    def open(self, queues: Collection[Queue]) -> None:
        """Take queues over from whatever task had them before."""
        if self._exactly and queues:
            self.take_over(queues)
        self._begin_anew()

    def offsets(self) -> Mapping[Queue, int] | None:
        """Return the offsets that are kept beside the data."""
        kept = self._done.keys() & self.context.queues
        return {queue: self._done[queue] for queue in kept} if self._exactly else None

    def close(self, queues: Collection[Queue]) -> None:
        """Forget queues, and records that were not flushed: they are read again."""
        for queue in queues:
            self._done.pop(queue, None)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Have all records come again that are not written."""
        self._gathered: list[T] = []
        self._progress = Progress(self._done)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records; those that are gathered or written already are left out."""
        for record in self._progress.fresh(records):
            self._progress.take([record])
            try:
                if (found := self.gathered(record)) is not None:
                    self._gathered.append(found)
            except (SchemaError, MessageRejectedError) as error:
                self.context.report(record, error)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write what was gathered and the offsets; after an outage the same call comes again."""
        kept = offsets if self._exactly else {}
        moved = {queue: to for queue, to in kept.items() if to > self._done.get(queue, -1)}
        # Where offsets are kept, what stands behind them comes again.
        if moved or (self._gathered and not self._exactly):
            self.write(self._gathered, moved)
            self._done.update(moved)
        self._begin_anew()
