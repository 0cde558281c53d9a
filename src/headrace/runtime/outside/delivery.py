"""Messages that are handed over to an outside system, before the batch is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.protocol.transactions import Position
from headrace.runtime.chunk import Chunk
from headrace.runtime.outside.feed import byte_count, chunk_of
from headrace.runtime.processors import Processor
from headrace.topology.operators.outside import Delivery

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.processors import ProcessorContext

__all__ = ["DeliveryProcessor"]


class DeliveryProcessor(Processor[Delivery]):
    """Hands over what comes, and has it made sure of at the end of the batch."""

    def __init__(self, operator: Delivery, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._handed = False

    def process(self, chunk: Chunk) -> Chunk:
        """Hand messages over, queue by queue, each with the name of its queue."""
        assert chunk.queues is not None, "messages come with their queues"
        if np.any(chunk.queues[:-1] > chunk.queues[1:]):
            chunk = chunk.take(np.argsort(chunk.queues, kind="stable"))
        assert isinstance(chunk.values, ColumnValues), "messages come in columns"
        names = pa.DictionaryArray.from_arrays(
            pa.array(chunk.queues, pa.int32()), pa.array(self.context.source_queues, pa.string())
        )
        batch = chunk.values.batch
        messages = pa.RecordBatch.from_arrays(
            [names, *batch.columns], ["queue", *batch.schema.names]
        )
        assert self.operator.outlet is not None, "somebody takes them"
        self.operator.outlet.put(*self.context.epoch_and_batch, messages)
        self._handed = True
        counters, size = self.context.counters, byte_count(batch.column("body"))
        counters["outside_bytes"] = counters.get("outside_bytes", 0) + size
        return Chunk.empty()

    def finish(self) -> Chunk:
        """Have the batch made sure of, and pass on what was refused."""
        outlet = self.operator.outlet
        if not self._handed or outlet is None:
            return Chunk.empty()
        outlet.flush(*self.context.epoch_and_batch)
        refused = outlet.refused(*self.context.epoch_and_batch)
        return Chunk.empty() if refused is None else chunk_of(refused, self.context.partition)

    def reached(self, ends: Mapping[QueueName, int]) -> None:
        """Keep how far each queue has been handed over: here, or as the outside says by itself."""
        generation = self.operator.generation
        for queue, offset in ends.items():
            if offset:
                self.context.positions[queue] = Position(offset=offset, generation=generation)
