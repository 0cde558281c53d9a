"""Records and watermarks on their way through a topic of the job's own: see decision 0009.

Records are messages as any sink writes them; what only the job needs stands in properties of the
few messages that have it.  Watermarks are messages of their own, written by one task per batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
from headrace.protocol.properties import encode_properties
from headrace.runtime.chunk import NEVER, Chunk, Int64s
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.event_time.watermarks import QueueWatermark, origin_name
from headrace.runtime.sinks import SinkWriter
from headrace.runtime.sources.messages import SourceReader
from headrace.topology.operators.through import (
    LATE_BELOW,
    NO_VALUE,
    RETRACTS,
    SENDER,
    TIME,
    WATERMARK,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.control import Control
    from headrace.runtime.sources.messages import SourceTask
    from headrace.topology.operators.through import Through, ThroughSource

__all__ = ["ThroughReader", "ThroughWriter", "watermark_messages"]

_TIME = TIME.encode()


class ThroughWriter(SinkWriter):
    """Turns records into messages of a topic that the next batch reads."""

    def _properties(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, Int64s]:
        properties, numbers = super()._properties(chunk, queues)
        times = chunk.times.tolist()
        encoded = [
            b"%b%b\x01%d\x02" % (data, _TIME, time)
            for data, time in zip(properties.to_pylist(), times, strict=True)
        ]
        for index, data in _rare_properties(chunk).items():
            encoded[index] += data
        return pa.array(encoded, pa.binary()), numbers


def _rare_properties(chunk: Chunk) -> dict[int, bytes]:
    """Say what key, value, time and headers do not tell of the records that have such."""
    more: dict[int, dict[str, str]] = {}
    if chunk.late_below is not None:
        for index in np.flatnonzero(chunk.late()).tolist():
            more[index] = {LATE_BELOW: str(chunk.late_below[index])}
    if chunk.retracts is not None:
        for index in np.flatnonzero(chunk.retracts).tolist():
            more.setdefault(index, {})[RETRACTS] = "1"
    for index, value in enumerate(chunk.values):
        if value is None:
            more.setdefault(index, {})[NO_VALUE] = "1"
    return {index: encode_properties(properties) for index, properties in more.items()}


class ThroughReader(SourceReader):
    """Reads back what a :class:`ThroughWriter` wrote, and the watermarks between it.

    Parameters
    ----------
    source, task, forwards_headers
        As :class:`SourceReader` takes them.
    job
        The job, whose own watermarks count alone.
    """

    def __init__(
        self, source: ThroughSource, task: SourceTask, *, job: str, forwards_headers: bool
    ) -> None:
        super().__init__(source, task, forwards_headers=forwards_headers)
        self._job = job.encode()

    def read(self, topic: str, columns: MessageColumns) -> Chunk:
        """Deserialize records; those that cannot be read follow the source's policy."""
        empty = columns.property(NO_VALUE).is_valid().to_numpy(zero_copy_only=False)
        if empty.any():
            live = super().read(topic, columns.take(~empty))
            chunk = Chunk.merge([live, self._without_values(columns.take(empty))])
        else:
            chunk = super().read(topic, columns)
        return _with_marks(chunk, columns)

    def _times(self, values: list[Any], columns: MessageColumns) -> Int64s:
        del values
        return _numbers(columns.property(TIME), columns.born)

    def _without_values(self, columns: MessageColumns) -> Chunk:
        keys = keys_from_columns(columns.property(KEYS), columns.property(EXACT_KEY))
        headers = self._headers(columns)
        times = self._times([], columns)
        return Chunk(keys, [None] * len(columns), times, columns.position, headers)

    def watermarks(
        self,
        columns: MessageColumns,
        queues: Sequence[QueueName],
        numbers: npt.NDArray[np.intp],
    ) -> Iterator[QueueWatermark]:
        """Give the job's watermarks among messages, ``numbers`` naming the queue of each."""
        times = columns.property(WATERMARK)
        if times.null_count == len(times):
            return
        senders = columns.property(SENDER).to_pylist()
        for index, time in enumerate(times.to_pylist()):
            if time is not None and senders[index] == self._job:
                origin = origin_name(self.source.name, queues[numbers[index]])
                yield QueueWatermark(int(columns.position[index]), origin, int(time))


def _with_marks(chunk: Chunk, columns: MessageColumns) -> Chunk:
    """Tell which of the records are late, and which take earlier ones back."""
    late_below, retracts = columns.property(LATE_BELOW), columns.property(RETRACTS)
    places = np.searchsorted(columns.position, chunk.marks)
    if late_below.null_count < len(late_below):
        times = _numbers(late_below, np.full(len(columns), NEVER, np.int64))
        chunk = replace(chunk, late_below=times[places])
    if retracts.null_count < len(retracts):
        found = retracts.is_valid().to_numpy(zero_copy_only=False)
        chunk = replace(chunk, retracts=found[places])
    return chunk


def _numbers(column: pa.BinaryArray, default: Int64s) -> Int64s:
    """Read a property that holds a number; the default where a message does not have it."""
    if column.null_count == len(column):
        return default
    numbers = column.cast(pa.string()).cast(pa.int64())
    found: Int64s = pc.coalesce(numbers, pa.array(default)).to_numpy(zero_copy_only=False)
    return found


def watermark_messages(
    control: Control, throughs: Sequence[Through], announced: Mapping[str, int]
) -> Iterator[QueueMessages]:
    """Encode what a batch announces of event time, for each queue of the topics concerned."""
    for sink in throughs:
        time = announced.get(sink.name)
        if time is None:
            continue
        about = {"job": control.job, "operator": sink.name, "batch": control.batch}
        body = orjson.dumps({"watermark": time, **about})
        properties = encode_properties({WATERMARK: str(time), SENDER: control.job})
        for queue in control.queues(sink.topic):
            yield QueueMessages(
                queue,
                pa.array([body], pa.binary()),
                pa.array([properties], pa.binary()),
                np.array([control.clock], np.int64),
            )
