"""The ``StreamBuilder`` class, which every topology starts with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from headrace.columns import Expression
from headrace.columns.sql import Query, parse
from headrace.errors import TopologyError
from headrace.serdes import Deserializer, Keyed, Serde, TableDeserializer, as_deserializer, with_key
from headrace.serdes.inference import document_serde_for
from headrace.streams.aggregates import Measure, avg, count, max_, min_, sum_
from headrace.streams.flow import Flow, Known
from headrace.streams.joins.tables import kept
from headrace.streams.sources import SourceOptions, Topics, make_source, place_of
from headrace.streams.stream import Stream
from headrace.streams.tables import GlobalTable, Table
from headrace.topology import ErrorPolicy, Operator, Topology, check_pickling
from headrace.topology.callers import caller
from headrace.topology.names import check_job_name

# SQL over named streams.

_MEASURES: Mapping[str, Callable[[Expression | None], Measure[Any]]] = {
    "avg": avg,
    "count": count,
    "max": max_,
    "min": min_,
    "sum": sum_,
}


def query(
    text: str,
    streams: Mapping[str, Stream[Any, Any]],
    name: str | None,
    on_error: ErrorPolicy = "fail",
) -> Stream[Any, Any]:
    """Build the operators of a select statement; ``name`` names the one that makes the result.

    Raises
    ------
    TopologyError
        The statement cannot be read, or names a stream that was not given.
    """
    statement = parse(text)
    stream = streams.get(statement.table)
    if stream is None:
        given = ", ".join(sorted(streams)) or "none"
        raise TopologyError(
            f"sql() reads from '{statement.table}', but the streams given are {given}",
            hint=f"name it: sql(text, {statement.table}=stream)",
        )
    if statement.where is not None:
        only = name if not statement.columns and not statement.keys else None
        stream = stream.where(Expression(statement.where), name=only, on_error=on_error)
    if statement.keys:
        return _grouped(statement, stream, name, on_error)
    if not statement.columns:
        return stream
    return stream.select(*_expressions(statement.columns), name=name, on_error=on_error)


def _grouped(
    statement: Query, stream: Stream[Any, Any], name: str | None, on_error: ErrorPolicy
) -> Stream[Any, Any]:
    groups = stream.group_by(*_expressions(statement.keys), on_error=on_error)
    measures = [
        _MEASURES[one.kind](None if one.argument is None else Expression(one.argument)).named(
            one.name
        )
        for one in statement.measures
    ]
    results = groups.agg(*measures, name=name, on_error=on_error).to_stream()
    if statement.having is not None:
        results = results.where(Expression(statement.having), on_error=on_error)
    return results.select(*_expressions(statement.columns), on_error=on_error)


def _expressions(columns: Any) -> list[Expression]:
    return [Expression(node, name) for name, node in columns]


K = TypeVar("K")
V = TypeVar("V")


class StreamBuilder:
    """Builds the topology of one job.

    Parameters
    ----------
    name
        Name of the job, which is also its consumer group and the prefix of its own topics.

    Raises
    ------
    TopologyError
        The name cannot be part of a topic's name.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("word-count")
    >>> (
    ...     builder.source("lines", serdes.string)
    ...     .flat_map_values(lambda line: line.lower().split())
    ...     .key_by(lambda word: word)
    ...     .count()
    ...     .sink("counts", serdes.json)
    ... )
    <end of 'sink-counts'>
    >>> print(builder.build().describe())
    topology word-count
      stage 0
        source-lines           reads lines, deserializer string
        flat_map_values-lines  <- source-lines
        key_by-lines           <- flat_map_values-lines
      stage 1
        count-lines            <= key_by-lines (by key), emit update, state int
        sink-counts            <- count-lines, writes counts, serializer json
      topics
        lines                              read by source-lines
        counts                             written by sink-counts
        word-count-count-lines-stateTopic  state of count-lines
        word-count-commitTopic             commits of the job
    """

    def __init__(self, name: str) -> None:
        check_job_name(name)
        self.name = name
        self._operators: list[Operator] = []
        self._derived: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"StreamBuilder({self.name!r})"

    @overload
    def source(
        self,
        topic: Topics,
        deserializer: Serde[V] | type[V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Stream[None, V]: ...
    @overload
    def source(
        self,
        topic: Topics,
        deserializer: Deserializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Stream[K, V]: ...
    @overload
    def source(  # type: ignore[overload-overlap]  # a Keyed is a value too: the first match wins
        self,
        topic: Topics,
        deserializer: Callable[[bytes], Keyed[K, V]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Stream[K, V]: ...
    @overload
    def source(
        self,
        topic: Topics,
        deserializer: Callable[[bytes], V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Stream[None, V]: ...
    def source(
        self,
        topic: Topics,
        deserializer: Serde[V]
        | type[V]
        | Deserializer[K, V]
        | Callable[[bytes], Keyed[K, V]]
        | Callable[[bytes], V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Stream[K, V] | Stream[None, V]:
        """Read a topic, several topics, or all topics that match a pattern.

        A running job also reads new queues of a topic, and new topics that match, from their first
        message.

        Parameters
        ----------
        topic
            Name of the topic, a list of names, or a compiled pattern that must match whole names.
        deserializer
            A serde; a dataclass, named tuple, TypedDict, msgspec Struct or pydantic model, or a
            container of these, which is read as JSON; a callable that takes a message's body and
            returns the value, or a :class:`~headrace.serdes.Keyed` with a key; or a deserializer
            such as ``serdes.with_key(serdes.json)``, which also returns the message's own key.
        name
            Name of the operator; ``source-TOPIC`` by default.
        on_error
            What to do with a message that cannot be read: ``"fail"`` stops the job and names the
            message, ``"skip"`` leaves it out and counts it, ``"topic:NAME"`` also sends it to that
            topic.
        timestamp
            Where the record's time comes from: ``"message"``, its born time (the default);
            ``"wall"``, the clock of the batch; or a function of the value that returns an aware
            datetime or ms since 1970 (None: the born time).
        allowed_lateness
            How far a record may lag behind the newest of its queue before it is late; 2 seconds
            by default.
        idle_timeout
            How long a queue may be silent before event time advances without it; 10 seconds by
            default; None: for ever.  If all queues are silent, event time advances to the furthest
            of them.
        max_future
            Records that are further ahead of their store time than this are counted as ``future``
            and do not advance the watermark; the default is ``JobSettings.max_future``.
        start
            Where to begin: ``"first"``, ``"latest"``, an aware datetime (the store time), or
            offsets by queue number or queue name; the default is ``JobSettings.start``.
        start_once
            Whether ``start`` holds only until the job has read these topics (True, the default),
            or at every start of the job.

        Raises
        ------
        TopologyError
            The deserializer is neither a serde nor callable, or an option cannot work.

        Examples
        --------
        >>> import re
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("lines", serdes.string)
        <stream 'source-lines'>
        >>> builder.source(re.compile("orders-.*"), serdes.json, timestamp=lambda o: o["at"])
        <stream 'source-orders'>
        """
        made_by = caller()
        place = place_of(topic)
        fields = {
            "name": self.name_for("source", place, name),
            "parents": (),
            "origin": made_by.origin,
            "on_error": on_error,
        }
        operator = make_source(fields, topic, deserializer, made_by, options)
        self.add(operator)
        reader = operator.deserializer
        key = Known(reader.key_hint, None, operator.name, operator.origin)
        value = Known(reader.value_hint, reader.value_serde, operator.name, operator.origin)
        return Stream(Flow(self, operator.name, name or place, key, value))

    @overload
    def table(
        self,
        topic: str,
        deserializer: Serde[V] | type[V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Table[str, V]: ...
    @overload
    def table(
        self,
        topic: str,
        deserializer: Deserializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Table[K, V]: ...
    def table(
        self,
        topic: str,
        deserializer: Serde[V] | type[V] | Deserializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> Table[str, V] | Table[K, V]:
        """Read a topic as a table: the newest value of each key.

        A message with an empty body deletes its key.  ``on_error`` decides what to do with a
        message without a key; one that the deserializer accepts nevertheless is left out and
        counted as ``null_keys``.

        Parameters
        ----------
        topic
            Name of the topic.
        deserializer
            A serde or a type of the values if keys are text; or a deserializer that returns keys,
            such as ``serdes.with_key(serdes.json, of=int)``.
        name
            Name of the table and of its state store; ``table-TOPIC`` by default.
        options
            Those of :meth:`source`.  A quiet table holds back the windows after a join with it for
            ``idle_timeout``, 10 seconds by default.

        Raises
        ------
        TopologyError
            The deserializer is none of these, or an option cannot work.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").table("people", serdes.json)
        <table 'table-people'>
        """
        return Table(kept(self._changes(topic, deserializer, name, on_error, options), name))

    @overload
    def global_table(
        self,
        topic: str,
        deserializer: Serde[V] | type[V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> GlobalTable[str, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        deserializer: Deserializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> GlobalTable[K, V]: ...
    def global_table(
        self,
        topic: str,
        deserializer: Serde[V] | type[V] | Deserializer[K, V],
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **options: Unpack[SourceOptions[V]],
    ) -> GlobalTable[str, V] | GlobalTable[K, V]:
        """Read a topic as a table of which every partition has a whole copy.

        Streams can look up any key in it without a shuffle; see :meth:`Stream.join`.  Use it for
        small tables.

        Parameters
        ----------
        topic, deserializer, name, options
            As for :meth:`table`; the rows are kept in the state stores of the joins.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> StreamBuilder("job").global_table("countries", serdes.json)
        <global table 'source-countries'>
        """
        return GlobalTable(self._changes(topic, deserializer, name, on_error, options))

    def sql(
        self,
        text: str,
        *,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
        **streams: Stream[Any, Any],
    ) -> Stream[Any, Any]:
        """Build the operators of a select statement over one of the streams.

        The operators are those of :meth:`Stream.where`, :meth:`Stream.select` and
        :meth:`Stream.group_by`, and run on Arrow columns.  With ``group by`` the key is the group's
        value, and the results are updates: the latest of each changed group, once per batch.

        Parameters
        ----------
        text
            A statement of ``select``, ``from``, ``where``, ``group by`` and ``having``.
        name
            Name of the operator that makes the result, or that keeps the groups.
        on_error
            What to do with a record for which an expression cannot be computed; see
            :class:`Stream`.
        streams
            Streams, by the names that ``from`` uses for them.

        Raises
        ------
        TopologyError
            The statement cannot be read, or needs something that streams cannot do.

        Examples
        --------
        >>> from dataclasses import dataclass
        >>> from headrace import StreamBuilder
        >>> @dataclass
        ... class Order:
        ...     city: str
        ...     price: int
        >>> builder = StreamBuilder("job")
        >>> orders = builder.source("orders", Order)
        >>> builder.sql(
        ...     "select city, sum(price) as total from orders where price > 3 group by city",
        ...     orders=orders,
        ... )
        <stream 'select-orders'>
        """
        return query(text, streams, name, on_error)

    def build(self) -> Topology:
        """Check the operators and return them as an immutable topology.

        ``build`` can be called again, also after more operators have been added.

        Raises
        ------
        TopologyError
            The topology cannot work, or a function cannot be sent to Spark's workers.
        """
        topology = Topology(self.name, tuple(self._operators))
        check_pickling(topology.operators)
        return topology

    def add(self, operator: Operator) -> None:
        """Add an operator to the graph.

        Caller: streams. Affects: the topology that :meth:`build` returns.
        """
        self._operators.append(operator)

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators that were added so far."""
        return tuple(self._operators)

    def replace(self, operator: Operator) -> None:
        """Replace the operator that has the name of this one.

        Caller: streams. Affects: the topology that :meth:`build` returns.
        """
        names = [known.name for known in self._operators]
        self._operators[names.index(operator.name)] = operator

    def name_for(self, label: str, place: str, name: str | None) -> str:
        """Choose an operator's name: the user's, else ``KIND-PLACE``, then ``KIND-PLACE-2``.

        Operators that the user named count too, so naming one does not change the others' names.

        Caller: streams.
        """
        if name is not None and not name:
            message = f"name='' given to {label} of builder {self.name!r}: a name cannot be empty"
            raise TopologyError(message, hint="leave name= out to derive one")
        derived = f"{label}-{place}"
        self._derived[derived] += 1
        if name is not None:
            return name
        number = self._derived[derived]
        return derived if number == 1 else f"{derived}-{number}"

    def _changes(
        self,
        topic: str,
        deserializer: Any,
        name: str | None,
        on_error: ErrorPolicy,
        options: SourceOptions[Any],
    ) -> Flow:
        if isinstance(deserializer, Serde) or document_serde_for(deserializer):
            deserializer = with_key(deserializer)
        reader = deserializer
        if not isinstance(reader, Deserializer) and callable(reader):
            reader = as_deserializer(reader)
        wrapped = TableDeserializer(reader) if isinstance(reader, Deserializer) else reader
        source = None if name is None else f"{name}-source"
        stream: Stream[Any, Any] = self.source(
            topic, wrapped, name=source, on_error=on_error, **options
        )
        return stream._flow  # noqa: SLF001 - of the same front door
