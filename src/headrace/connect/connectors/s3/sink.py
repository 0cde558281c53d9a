"""``s3-sink``: rows as objects of a bucket, each of them once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
)
from headrace.connect.connectors.formats.writing import as_written, column_of
from headrace.connect.connectors.offsets import Progress, batch_from, set_by_hand
from headrace.connect.connectors.s3._folders import Folders, field_of, field_of_column
from headrace.connect.connectors.s3._marks import Mark, Marks, write_object
from headrace.connect.connectors.s3._naming import object_key
from headrace.connect.connectors.s3._objects import Gathered, Shape
from headrace.connect.connectors.s3.connection import Bucket, failure_of
from headrace.connect.connectors.s3.sink_keys import SINK_KEYS, sink_problems
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.records import Position

__all__ = ["S3SinkConnector", "S3SinkTask"]

#: So many queues are opened or written at once.
_AT_ONCE = 8
_Folder = str


class S3SinkTask(SinkTask):
    """Gathers rows; :meth:`flush` makes objects of those of each queue, and then moves its mark."""

    def start(self, config: Config) -> None:
        """Look at the bucket."""
        self._bucket = Bucket(config)
        self._prefix: str = config["prefix"]
        self._shape = Shape.of(config)
        self._folders = Folders.of(config)
        self._store = Marks(self._bucket, self._prefix, self.context.generation)
        self._marks: dict[Queue, Mark] = {}
        self._gathered: dict[Queue, dict[_Folder, Gathered]] = {}
        self._progress = Progress({})

    def open(self, queues: Collection[Queue]) -> None:
        """Take queues over: objects of a batch that was not finished are removed."""
        self._gathered = {}
        self._marks = dict(zip(queues, self._each(queues, self._take_over), strict=True))
        self._progress = Progress(self.offsets())

    def _take_over(self, queue: Queue) -> Mark:
        mark = self._store.read(queue)
        for key in mark.drafts:
            with suppress(FileNotFoundError):
                self._bucket.files.delete_file(self._bucket.path(key))
        return self._store.write(queue, mark.offset, self._expected(queue, mark.offset))

    def offsets(self) -> dict[Queue, int]:
        """Tell from the marks how far each queue has been written."""
        return {
            queue: mark.offset for queue, mark in self._marks.items() if mark.offset is not None
        }

    def close(self, queues: Collection[Queue]) -> None:
        """Forget rows that were not flushed: they are read again."""
        for queue in queues:
            self._gathered.pop(queue, None)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records."""
        for queue, some in groupby(self._progress.fresh(records), lambda one: one.queue):
            self._put(queue, list(some))

    def _put(self, queue: Queue, records: list[SinkRecord]) -> None:
        fields = {
            name: [field_of(one.value, name) for one in records] for name in self._folders.needed
        }
        placed = self._folders.of_rows(fields, [one.timestamp_ms for one in records])
        by_folder: dict[_Folder, list[SinkRecord]] = defaultdict(list)
        bad: list[tuple[SinkRecord, SchemaError]] = []
        for record, folder in zip(records, placed, strict=True):
            if isinstance(folder, SchemaError):
                bad.append((record, folder))
            else:
                by_folder[f"{record.topic}/{folder}".rstrip("/")].append(record)
        columns = {
            folder: column_of([one.value for one in some], self._shape.format)
            for folder, some in by_folder.items()
        }
        # Nothing above changes anything, so what was refused can come again in parts.
        for record, error in bad:
            self.context.report(record, error)
        for folder, some in by_folder.items():
            self._add(queue, folder, [one.offset for one in some], columns[folder])
        self._progress.take(records)

    def put_batch(self, batch: SinkBatch) -> None:
        """Gather columns."""
        rows = self._progress.fresh_rows(batch)
        if len(rows) == 0:
            return
        offsets = rows.offset.to_pylist()
        column = as_written(rows.value, self._shape.format)
        by_folder = self._placed(rows)
        for folder, places in by_folder.items():
            whole = len(places) == len(column)
            some = column if whole else column.take(pa.array(places, pa.int64()))
            self._add(rows.queue, folder, [offsets[place] for place in places], some)
        self._progress.take_rows(rows)

    def _placed(self, rows: SinkBatch) -> dict[_Folder, list[int]]:
        """Share rows out to folders; report those that belong to none."""
        topic = rows.queue.topic
        if not self._folders.by:
            return {topic: list(range(len(rows)))}
        fields = {name: field_of_column(rows.value, name) for name in self._folders.needed}
        times = [None] * len(rows) if rows.timestamp_ms is None else rows.timestamp_ms.to_pylist()
        by_folder: dict[_Folder, list[int]] = defaultdict(list)
        for place, folder in enumerate(self._folders.of_rows(fields, times)):
            if isinstance(folder, SchemaError):
                [record] = batch_from(rows, place, 1).records()
                self.context.report(record, folder)
            else:
                by_folder[f"{topic}/{folder}"].append(place)
        return by_folder

    def _add(self, queue: Queue, folder: _Folder, offsets: list[int], column: pa.Array) -> None:
        folders = self._gathered.setdefault(queue, {})
        folders.setdefault(folder, Gathered()).add(offsets, column)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the objects of each queue, and then its mark, which commits them."""
        moved = [queue for queue, end in offsets.items() if self._is_new(queue, end)]
        self._each(moved, lambda queue: self._write(queue, offsets[queue]))

    def _is_new(self, queue: Queue, end: int) -> bool:
        mark = self._marks.get(queue, Mark())
        return queue in self._gathered or mark.offset is None or mark.offset < end

    def _write(self, queue: Queue, end: int) -> None:
        objects = dict(self._objects(queue))
        # Who has read this knows that no later life had begun by then.
        mark = self._store.read(queue)
        if not objects.keys() <= set(mark.drafts):
            self._store.write(queue, mark.offset, tuple(objects))
        for key, column in objects.items():
            path = self._bucket.path(key)
            content = self._shape.content(column, path)
            write_object(self._bucket, path, content, self._shape.kind)
        self._marks[queue] = self._store.write(queue, end, self._expected(queue, end))
        self._gathered.pop(queue, None)

    def _objects(self, queue: Queue) -> Iterator[tuple[str, pa.Array]]:
        folders = self._gathered.get(queue, {})
        if not folders:
            return
        begin = self._marks.get(queue, Mark()).offset
        if begin is None:
            begin = min(gathered.offsets[0] for gathered in folders.values())
        for folder, gathered in folders.items():
            for number, (first, column) in enumerate(gathered.parts(self._shape)):
                # The first is named by where the batch begins, whatever the rows before it became.
                yield self._key(queue, folder, begin if number == 0 else first), column

    def _key(self, queue: Queue, folder: _Folder, first: int) -> str:
        return object_key(self._prefix, folder, queue, first, self._shape.ending)

    def _expected(self, queue: Queue, offset: int | None) -> tuple[str, ...]:
        """Name the one object that the next batch will most likely be."""
        if offset is None or self._folders.by:
            return ()
        return (self._key(queue, queue.topic, offset),)

    def _each(self, queues: Collection[Queue], do: Callable[[Queue], Any]) -> list[Any]:
        if not queues:
            return []
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(pool.map(do, queues))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise failure_of(error, f"bucket {self._bucket.name}") from error


class S3SinkConnector(SinkConnector):
    """Writes records as objects of a bucket; see docs/connect-storage.md."""

    version = "1.0"
    task = S3SinkTask
    config = SINK_KEYS

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        return sink_problems(config)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set marks further on; what has been written is refused to be written again."""
        marks = Marks(Bucket(config), config["prefix"], 0)
        changes = set_by_hand(offsets)
        for queue, offset in changes.items():
            written = marks.read(queue).offset
            if written is not None and (offset is None or offset < written):
                message = (
                    f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} has been "
                    f"written to bucket {config['bucket']} up to offset {written}; it cannot go back."
                )
                hint = "Give the connector another prefix, or remove the queue's objects and mark."
                raise ConnectorConfigError(message, hint=hint)
        for queue, offset in changes.items():
            marks.write(queue, offset, marks.read(queue).drafts)
        return True
