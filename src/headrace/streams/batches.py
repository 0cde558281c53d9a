"""Committed batches out of a stream, for code outside the transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace import serdes
from headrace.columns.schema import arrow_type
from headrace.serdes import as_serializer
from headrace.streams._records import BaseStream
from headrace.streams.outputs import End
from headrace.streams.sources import check_function
from headrace.topology import DriverFunction, ForEachBatch, SinkDataFrame, batch_topic, done_topic

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.sources import Known, NextOperator
    from headrace.topology import BatchRecords, BatchToken, ErrorPolicy

__all__ = ["Batches"]

K = TypeVar("K")
V = TypeVar("V")


class Batches(BaseStream[K, V]):
    """Ends of a stream that take whole batches."""

    def for_each_batch(
        self,
        function: Callable[[BatchRecords[K, V], BatchToken], object],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End:
        """Call a function with the records of each committed batch, at least once; nothing follows.

        The function runs after the commit, in a Python process of its own, one batch after the
        other, in their order.  When it raises, it is called again with the same records and the
        same token, after pauses that grow up to a minute; the job itself goes on.  A batch may
        come again after a failure: keep the token with what you write, and leave out what has it.

        Parameters
        ----------
        function
            Takes the records and the :class:`~headrace.BatchToken`.
        name
            Name of the operator, from which its topics derive.
        serde
            Writes the values; by default the one that is known of them, else plain data.
        on_error
            What becomes of a record that cannot be written to the operator's topic: ``"fail"``
            stops the job, ``"skip"`` counts it, ``"topic:NAME"`` sends the message that it comes
            from to that topic.

        Raises
        ------
        TopologyError
            The function does not take two arguments; no serde is known for the values, or their
            keys are not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes
        >>> def show(records, token):
        ...     print(token, [record.value for record in records])
        >>> builder = StreamBuilder("job")
        >>> builder.source("words", serdes.string).for_each_batch(show)
        <end of 'for_each_batch-words'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words", serdes.string).send("to")
        job-1 ['to']
        """
        step = self._flow.begin("for_each_batch", name, on_error=on_error)
        check_function(
            f"for_each_batch '{step.name}'", function, ("records", "token"), step.caller.origin
        )
        value = self._flow.value
        known = serde or value.needed_serde(step.name, "writes them to its topic")
        operator = ForEachBatch(**_fields(step, known), function=function)
        step.add(operator)
        return End(operator)

    def sink_dataframe(
        self,
        writer: Callable[[Any, BatchToken], object],
        *,
        name: str | None = None,
        serde: Serde[V] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> End:
        """Give each committed batch to Spark's own writers, at least once; nothing follows.

        The writer gets a Spark data frame and a :class:`~headrace.BatchToken` after the commit,
        one batch after the other.  It is called in a thread of the process that started the job,
        because only that one has data frames; what it asks of the data frame runs in Spark's
        executors.  Failures are handled as by :meth:`for_each_batch`.

        The columns are key, value, time, headers, broker, queue, offset.  Values of a known schema
        have its type, a struct where they have several columns; others are JSON text, or bytes
        where ``serde`` writes no text.

        Parameters
        ----------
        writer
            Takes the data frame and the token.
        name
            Name of the operator, from which its topics derive.
        serde
            Writes the values; by default the one that is known of them, else JSON.
        on_error
            As of :meth:`for_each_batch`.

        Raises
        ------
        TopologyError
            As of :meth:`for_each_batch`.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> def to_parquet(frame, token):
        ...     frame.write.mode("overwrite").parquet(f"/data/orders/batch={token.batch}")
        >>> builder = StreamBuilder("job")
        >>> builder.source("orders", serdes.json).sink_dataframe(to_parquet)
        <end of 'sink_dataframe-orders'>
        """
        step = self._flow.begin("sink_dataframe", name, on_error=on_error)
        check_function(
            f"sink_dataframe '{step.name}'", writer, ("frame", "token"), step.caller.origin
        )
        value = self._flow.value
        known: Serde[Any] = serde or value.needed_serde(step.name, "writes them to its topic")
        if serde is None and isinstance(known, serdes.PlainSerde) and value.columns is None:
            known = serdes.json
        operator = SinkDataFrame(**_fields(step, known), writer=DriverFunction(writer))
        step.add(operator)
        return End(operator)


def _fields(step: NextOperator, serde: Serde[Any]) -> dict[str, Any]:
    flow = step.flow
    flow.key.check_key(step.name)
    job = flow.builder.name
    return {
        **step.fields,
        "topic": batch_topic(job, step.name),
        "done_topic": done_topic(job, step.name),
        "serializer": as_serializer(serde),
        "value_serde": serde,
        "schema": flow.value.columns or serde.schema,
        "key_type": _key_type(flow.key),
    }


def _key_type(known: Known) -> pa.DataType:
    return arrow_type(known.hint) or pa.string()
