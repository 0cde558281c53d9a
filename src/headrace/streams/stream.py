"""Stream: records that flow, and what can be done with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

import pyarrow as pa

from headrace import serdes
from headrace.columns.schema import arrow_type
from headrace.errors import TopologyError
from headrace.serdes import as_serializer, key
from headrace.serdes.inference import result_hint
from headrace.streams._records import BaseStream, End, Outputs
from headrace.streams.columns import Columns
from headrace.streams.joins.chain import check_keyed
from headrace.streams.joins.ways import Joins
from headrace.streams.routing import Routing
from headrace.streams.sources import accepts, check_durations, check_function
from headrace.topology import (
    DriverFunction,
    ForEachBatch,
    KeyBy,
    KeyedProcess,
    Output,
    Process,
    SelectTimestamp,
    SinkDataFrame,
    batch_topic,
    done_topic,
)
from headrace.topology.callers import caller
from headrace.topology.names import check_operator_name

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import StepOptions
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.sources import Flow, Known, NextOperator
    from headrace.topology import (
        BatchRecords,
        BatchToken,
        ErrorPolicy,
        Processor,
        StateSpec,
        TimerSpec,
    )


# Event time as the front door shows it.

K = TypeVar("K")
V = TypeVar("V")

_LATENESS = timedelta(seconds=2)
_IDLE = timedelta(seconds=10)


class Times(Generic[K, V]):
    """A place in the graph where records get other times."""

    _flow: Flow

    def select_timestamp(
        self,
        function: Callable[[V], datetime | int | None],
        *,
        name: str | None = None,
        allowed_lateness: timedelta = _LATENESS,
        idle_timeout: timedelta | None = _IDLE,
        max_future: timedelta | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Self:
        """Set the time of each record to the one that the function finds in its value.

        New times begin new watermarks: what was late by the old time need not be by the new one,
        and the other way round.

        Parameters
        ----------
        function
            Takes the value, gives an aware datetime or ms since 1970; None leaves the time.
        name
            Name of the operator.
        allowed_lateness
            How far a record may lag behind the newest of its source queue (behind a shuffle: of
            its partition) before it is late.
        idle_timeout
            So long a queue or partition may be silent before event time goes on without it; None:
            the others wait for ever.
        max_future
            Records so far ahead of the wall clock are counted, as ``future``, and move no
            watermark; by default as ``JobSettings.max_future`` says.

        on_error
            What to do with a record for which the function raises or gives no time: ``"fail"``,
            ``"skip"`` or ``"topic:NAME"``, as in :meth:`StreamBuilder.source`.

        Raises
        ------
        TopologyError
            The function does not take one value, or a duration is negative.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> orders.select_timestamp(lambda order: order["paid_at"])
        <stream 'select_timestamp-orders'>
        """
        step = self._flow.begin("select_timestamp", name, on_error=on_error)
        check_function("select_timestamp", function, ("value",), step.caller.origin)
        durations = {
            "allowed_lateness": allowed_lateness,
            "idle_timeout": idle_timeout,
            "max_future": max_future,
        }
        check_durations(f"operator '{step.name}' at {step.caller.origin}", durations)
        changed = copy(self)
        changed._flow = step.add(  # noqa: SLF001 - a copy of this very object
            SelectTimestamp(
                **step.fields,
                function=function,
                allowed_lateness=allowed_lateness,
                idle_timeout=idle_timeout,
                max_future=max_future,
            )
        )
        return changed


# Committed batches out of a stream, for code outside the transaction.


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
        """Hand each committed batch to Spark's own writers, at least once; nothing follows.

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


# The low level in the front door: ``process``.

K2 = TypeVar("K2")
V2 = TypeVar("V2")

_LONGEST_NAME = 100


class Processing(BaseStream[K, V]):
    """Records through a processor of the user's."""

    def process(
        self,
        factory: Callable[[], Processor[K, V, K2, V2]],
        *,
        states: Iterable[StateSpec] = (),
        timers: Iterable[TimerSpec] = (),
        outputs: Iterable[str] = (),
        lag: timedelta = timedelta(0),
        name: str | None = None,
        serde: Serde[V2] | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> ProcessedStream[K2, V2]:
        """Hand each record to a processor that you write.

        With states or timers the records of a key meet in one task.  Late records come too: a
        processor decides itself what they are worth.  An error in a timer stops the job.

        Parameters
        ----------
        factory
            The processor's class, or what makes one without arguments.
        states
            State that is kept for each key: ``value_state``, ``map_state``, ``list_state``,
            ``window_state`` of :mod:`headrace.topology`.
        timers
            Timers that can be set for each key: ``event_timer``, ``wall_timer``.
        outputs
            Names of children beside the stream that this gives; see
            :meth:`ProcessedStream.output`.
        lag
            How much older than event time the records may be that the processor gives; what
            is older still may be late for what follows.
        name
            Name of the operator, and of its state store.
        serde
            Writes the values that it gives.
        on_error
            What becomes of a record on which ``process`` raises; see :meth:`map_values`.  What it
            did to state, and what it forwarded, is taken back.

        Raises
        ------
        TopologyError
            There are states or timers and the stream has no keys; two have the same name; the
            values are of a type without a serde.

        Examples
        --------
        >>> from headrace import Context, Processor, Record, StreamBuilder, TopologyTestDriver
        >>> from headrace import serdes, value_state
        >>> class Changes(Processor[str, float, str, float]):
        ...     def init(self, context: Context) -> None:
        ...         self.context, self.last = context, context.value("last")
        ...
        ...     def process(self, record: Record[str, float]) -> None:
        ...         if record.value != self.last.get():
        ...             self.last.put(record.value)
        ...             self.context.forward(record)
        >>> builder = StreamBuilder("job")
        >>> sensors = builder.source("degrees", serdes.with_key(serdes.float))
        >>> changes = sensors.process(Changes, states=[value_state("last", serdes.float)])
        >>> changes.sink("changes", serdes.float)
        <end of 'sink-changes'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     for degrees in (20.5, 20.5, 21.0):
        ...         driver.input("degrees", serdes.float).send(degrees, key="hall")
        ...     [record.value for record in driver.output("changes", serdes.float).read_all()]
        [20.5, 21.0]
        """
        step = self._flow.begin("process", name, on_error=on_error)
        _check_factory(factory, step)
        kept, alarms, names = tuple(states), tuple(timers), tuple(outputs)
        _check_names([*(s.name for s in kept), *(t.name for t in alarms)], names, step)
        fields = {**step.fields, "factory": factory, "outputs": names}
        if kept or alarms:
            operator: Process = _keyed(self._flow, step, fields, kept, alarms, lag)
        else:
            operator = Process(**fields)
        given = step.add(operator, key=step.known(Any), value=step.known(Any, serde))
        return ProcessedStream(given, operator)


def _check_factory(factory: object, step: NextOperator) -> None:
    if not callable(factory) or not accepts(factory, 0):
        raise TopologyError(
            f"process at {step.caller.origin} needs a class of processors, not {factory!r:.100}",
            hint="give it a subclass of Processor, or a function without parameters that makes one",
        )


def _keyed(
    flow: Flow,
    step: NextOperator,
    fields: dict[str, Any],
    states: tuple[StateSpec, ...],
    timers: tuple[TimerSpec, ...],
    lag: timedelta,
) -> KeyedProcess:
    if flow.key.hint is type(None):
        raise TopologyError(
            f"process at {step.caller.origin} declares states or timers, which belong to keys,"
            f" and the records of '{flow.operator}' have none",
            hint="give them keys first: key_by(...)",
        )
    flow.key.check_key(step.name)
    return KeyedProcess(
        **fields,
        value_serde=flow.value.needed_serde(step.name, "keeps state by key"),
        key_serde=serdes.key,
        states=states,
        timers=timers,
        lag=lag,
    )


def _check_names(declared: list[str], outputs: tuple[str, ...], step: NextOperator) -> None:
    origin = step.caller.origin
    for name, times in [*Counter(declared).items(), *Counter(outputs).items()]:
        check_operator_name("job", name, f"declared at {origin}", stateful=False)
        if times > 1 or len(name) > _LONGEST_NAME:
            problem = "twice" if times > 1 else f"with more than {_LONGEST_NAME} characters"
            raise TopologyError(
                f"process at {origin} declares '{name}' {problem}", hint="choose another name"
            )


class Stream(
    Joins[K, V],
    Routing[K, V],
    Processing[K, V],
    Times[K, V],
    Columns[K, V],
    Batches[K, V],
    Outputs[K, V],
):
    """Records with keys of type ``K`` and values of type ``V``.

    Made by :meth:`StreamBuilder.source` and by the operators.  A stream can be used more than
    once: each operator added to it is a branch that gets all records.  None is a value like any
    other; ``filter`` and ``flat_map`` drop records.

    Where values must travel between Spark's stages or lie in a state store, they do so by the
    serde that ``serde=`` names on the operator that makes them, else by the one that follows from
    the function's annotations, else as plain data.
    """

    @overload
    def key_by(
        self,
        selector: Callable[[V], K2],
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    @overload
    def key_by(
        self,
        selector: Callable[[K, V], K2],
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    def key_by(
        self,
        selector: Callable[..., Any],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Set the key of each record to the one that the selector finds in its value.

        Keys are plain data (see :mod:`headrace.keys`); ``1``, ``1.0`` and ``True`` are three keys.

        Parameters
        ----------
        selector
            Takes the value, or key and value, gives the key.
        name
            Name of the operator.
        on_error
            What becomes of a record on which the selector raises: ``"fail"`` stops the job,
            ``"skip"`` counts it, ``"topic:NAME"`` sends its message to that topic.

        Raises
        ------
        TopologyError
            The selector's annotation promises keys that are not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").source("words", serdes.string).key_by(str.lower)
        <keyed stream 'key_by-words'>
        """
        from headrace.streams.keyed import KeyedStream

        step, takes_key = self._record_step("key_by", selector, name, on_error)
        known = step.known(result_hint(selector, step.caller.names))
        known.check_key(step.name)
        operator = KeyBy(**step.fields, selector=selector, takes_key=takes_key, key_serde=key)
        return KeyedStream(step.add(operator, key=known))

    def group_by_key(self) -> KeyedStream[K, V]:
        """Go on by the keys that the records have.

        Adds no operator.  A shuffle follows only where the key is not the one of the last shuffle.

        Raises
        ------
        TopologyError
            The keys are of a known type that is not plain data.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> counts = StreamBuilder("job").source("counts", serdes.with_key(serdes.json))
        >>> counts.group_by_key()
        <keyed stream 'source-counts'>
        """
        from headrace.streams.keyed import KeyedStream

        self._flow.key.check_key("group_by_key")
        check_keyed(self._flow, "group_by_key", caller().origin)
        return KeyedStream(self._flow)


# What a processor gives.


class ProcessedStream(Stream[K, V]):
    """The records that a processor forwards.

    Parameters
    ----------
    flow
        Where they are.
    process
        The operator that forwards them.
    """

    def __init__(self, flow: Flow, process: Process) -> None:
        super().__init__(flow)
        self._process = process

    def output(self, name: str) -> Stream[Any, Any]:
        """Return the records that it forwards to the child with a name.

        Raises
        ------
        TopologyError
            The processor declares no such output.

        Examples
        --------
        >>> from headrace import Processor, Record, StreamBuilder, serdes
        >>> class Split(Processor[None, int, None, int]):
        ...     def init(self, context):
        ...         self.context = context
        ...
        ...     def process(self, record: Record[None, int]) -> None:
        ...         self.context.forward(record, child="odd" if record.value % 2 else "")
        >>> numbers = StreamBuilder("job").source("numbers", serdes.int)
        >>> numbers.process(Split, outputs=["odd"]).output("odd")
        <stream 'process-numbers-odd'>
        """
        flow, process = self._flow, self._process
        made_by = caller()
        if name not in process.outputs:
            raise TopologyError(
                f"operator '{process.name}' (made at {process.origin}) has no output '{name}':"
                f" it declares {', '.join(process.outputs) or 'none'}",
                hint=f"process(..., outputs=[{name!r}])",
            )
        output = Output(
            name=f"{process.name}-{name}",
            parents=(process.name,),
            output=name,
            origin=made_by.origin,
        )
        flow.builder.add(output)
        return Stream(replace(flow, operator=output.name))
