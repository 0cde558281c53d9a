"""Records of a sink whose batches are read back: each message says its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.runtime.batches.tags import make_tag
from headrace.runtime.sinks import SinkContext, SinkWriter

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.topology.operators.batches import BatchSink

__all__ = ["BatchSinkWriter"]


class BatchSinkWriter(SinkWriter):
    """Turns records into messages that carry the tag of their batch.

    Parameters
    ----------
    sink
        Topic and serializer.
    context
        Queues, and the numbers of the batch.
    """

    def __init__(self, sink: BatchSink, context: SinkContext) -> None:
        super().__init__(sink, context)
        epoch, batch = context.epoch_and_batch
        self._with_value = make_tag(epoch, batch, has_value=True)
        self._without = make_tag(epoch, batch, has_value=False)

    def _properties(self, chunk: Chunk, queues: int) -> tuple[pa.BinaryArray, Int64s]:
        properties, numbers = super()._properties(chunk, queues)
        tags = [self._without if value is None else self._with_value for value in chunk.values]
        return pc.binary_join_element_wise(properties, pa.array(tags, pa.binary()), b""), numbers
