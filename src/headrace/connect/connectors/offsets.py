"""Offsets of queues that a sink keeps beside its data, in a small file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import Queue, SinkBatch, SinkRecord
from headrace.errors import ConnectorConfigError

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
    """Tells records that a sink has already taken, so that it takes none twice.

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
