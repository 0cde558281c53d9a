"""Messages on their way out, as they were read: nobody deserializes them here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.runtime.chunk import Chunk
from headrace.runtime.sources.messages import SourceReader

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns

__all__ = ["MessageReader"]


class MessageReader(SourceReader):
    """Gives the messages of a topic as columns."""

    names_queues: ClassVar[bool] = True
    # Outside each queue counts for itself, and few long runs of a queue are quicker.
    in_order: ClassVar[bool] = False

    def read(self, topic: str, columns: MessageColumns) -> Chunk:
        """Put messages into columns: offset, body, properties, timestamp, system flag."""
        del topic
        batch = pa.RecordBatch.from_pydict(
            {
                "offset": pa.array(columns.queue_offset),
                "body": columns.body,
                "properties": columns.properties,
                "timestamp": pa.array(columns.born),
                "sys_flag": pa.array(columns.sys_flag),
            }
        )
        values: Any = ColumnValues(batch)
        return Chunk(None, values, columns.born, columns.position)
