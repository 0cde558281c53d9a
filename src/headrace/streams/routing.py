"""Streams that are brought together, parted and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from headrace.errors import TopologyError
from headrace.serdes import as_deserializer, as_serializer, with_key
from headrace.serdes.inference import result_hint
from headrace.streams._records import BaseStream
from headrace.streams.joins.chain import check_stream
from headrace.streams.sources import record_function
from headrace.topology import (
    Branch,
    KeyBy,
    Merge,
    Output,
    Repartition,
    Through,
    ThroughSource,
    shuffle_topic,
)

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams._options import StepOptions
    from headrace.streams.keyed import KeyedStream
    from headrace.streams.sources import Flow, Known, NextOperator
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy


# Streams that go through a topic of the job's own: see :meth:`Stream.through`.


def loop(
    flow: Flow,
    topic: str | None,
    queues: int,
    serde: Serde[Any] | None,
    name: str | None,
    on_error: ErrorPolicy,
) -> Flow:
    """Add the operator that writes the topic and the one that reads it.

    Raises
    ------
    TopologyError
        Keys or values cannot travel, or ``queues`` is below 1.
    """
    step = flow.begin("through", name, on_error=on_error)
    if queues < 1:
        raise TopologyError(
            f"through at {step.caller.origin} has queues={queues}",
            hint="leave it out for 8 queues",
        )
    flow.key.check_key(step.name)
    serde = serde or flow.value.needed_serde(step.name, "writes them to a topic")
    keyed = flow.key.hint is not type(None)
    place = len(flow.builder.operators) + 1
    writer = Through(
        **step.fields,
        topic=shuffle_topic(flow.builder.name, place) if topic is None else topic,
        serializer=as_serializer(serde),
        value_serde=serde,
        keyed=keyed,
        queues=queues,
    )
    step.add(writer)
    reader = ThroughSource(
        name=f"{writer.name}-read",
        parents=(writer.name,),
        origin=step.caller.origin,
        on_error=on_error,
        topic=writer.topic,
        deserializer=with_key(serde, of=object) if keyed else as_deserializer(serde),
        keyed=keyed,
        # Watermarks come as messages, records bring with them whether they are late.
        allowed_lateness=timedelta(0),
        idle_timeout=None,
        start="latest",
    )
    return step.add(reader)


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
StreamT = TypeVar("StreamT")


class Branches(Mapping[str, StreamT], Generic[StreamT]):
    """The streams that ``branch`` makes, by name: ``branches.large`` or ``branches["large"]``.

    Parameters
    ----------
    streams
        The streams.
    """

    def __init__(self, streams: Mapping[str, StreamT]) -> None:
        self._streams = dict(streams)

    def __repr__(self) -> str:
        return f"<branches {', '.join(self._streams)}>"

    def __getitem__(self, name: str) -> StreamT:
        return self._streams[name]

    def __getattr__(self, name: str) -> StreamT:
        if name.startswith("_") or name not in self._streams:
            message = f"there is no branch {name!r}: there are {', '.join(self.__dict__.get('_streams', ()))}"
            raise AttributeError(message)
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


class Routing(BaseStream[K, V]):
    """Which way records go."""

    def merge(
        self, *others: Stream[K, V], name: str | None = None, serde: Serde[V] | None = None
    ) -> Stream[K, V]:
        """Return the records of this stream and of others as one stream.

        Behind the next shuffle they are in the order in which their messages arrived.

        Parameters
        ----------
        others
            Streams of the same builder.
        name
            Name of the operator.
        serde
            Writes the values, where the streams name different serdes.

        Raises
        ------
        TopologyError
            There is no other stream, or one belongs to another builder.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("web", serdes.json).merge(builder.source("shop", serdes.json))
        <stream 'merge-web'>
        """
        step = self._flow.begin("merge", name)
        for other in others:
            check_stream("merge", other, step.caller.origin)
        flows = [self._flow, *(other._flow for other in others)]  # noqa: SLF001 - of its own kind
        _check_mergeable(flows, step)
        value = _common([flow.value for flow in flows], step, serde)
        operator = Merge(
            **{**step.fields, "parents": tuple(flow.operator for flow in flows)},
            value_serde=value.serde_or_plain(),
        )
        key = _common([flow.key for flow in flows], step)
        return self._stream(step.add(operator, key=key, value=value))

    def branch(
        self,
        *,
        name: str | None = None,
        default: str = "rest",
        on_error: ErrorPolicy = "fail",
        **predicates: Callable[..., object],
    ) -> Branches[Self]:
        """Part the records: each goes to the first branch whose predicate finds it true.

        Parameters
        ----------
        name
            Name of the operator; a branch is named after it.
        default
            Name of the branch for all other records.
        on_error
            What becomes of a record on which a predicate raises; see :meth:`map_values`.
        predicates
            By the name of the branch: a function of the value, or of key and value.

        Raises
        ------
        TopologyError
            There is no predicate, one cannot be called so, or the default has the name of one.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> orders = StreamBuilder("job").source("orders", serdes.json)
        >>> parts = orders.branch(large=lambda o: o["price"] > 99, free=lambda o: not o["price"])
        >>> parts.large, parts["rest"]
        (<stream 'branch-orders-large'>, <stream 'branch-orders-rest'>)
        >>> list(parts)
        ['large', 'free', 'rest']
        """
        step = self._flow.begin("branch", name, on_error=on_error)
        origin = step.caller.origin
        if not predicates or default in predicates:
            problem = f"names its default {default!r} as a predicate" if predicates else "has none"
            raise TopologyError(
                f"branch at {origin} {problem}",
                hint="for example branch(large=lambda order: order.price > 99)",
            )
        parted = step.add(
            Branch(
                **step.fields,
                predicates=tuple(
                    (branch, record_function(f"branch {branch!r}", predicate, origin))
                    for branch, predicate in predicates.items()
                ),
                default=default,
            )
        )
        names = [*predicates, default]
        return Branches({each: self._same(_output(parted, step, each)) for each in names})

    @overload
    def repartition(
        self,
        key: None = None,
        *,
        partitions: int | None = None,
        **options: Unpack[StepOptions],
    ) -> Self: ...
    @overload
    def repartition(
        self,
        key: Callable[[V], K2],
        *,
        partitions: int | None = None,
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    @overload
    def repartition(
        self,
        key: Callable[[K, V], K2],
        *,
        partitions: int | None = None,
        **options: Unpack[StepOptions],
    ) -> KeyedStream[K2, V]: ...
    def repartition(
        self,
        key: Callable[..., Any] | None = None,
        *,
        partitions: int | None = None,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Any:
        """Move the records to other tasks, so that what follows runs in as many as are wanted.

        Records go by their keys and keep their order per key.  A stream that has no keys is spread
        evenly.

        Parameters
        ----------
        key
            Takes the value, or key and value, gives the new key.
        partitions
            So many of the job's partitions take records, to spare what the next operator calls;
            all by default.
        name
            Name of the operator.
        on_error
            ``"fail"``, ``"skip"`` or ``"topic:NAME"``: what becomes of records whose key function
            fails, and of those that cannot be written on their way.

        Raises
        ------
        TopologyError
            The key function cannot be called so, or promises keys that are not plain data;
            ``partitions`` is below 1; the values are of a type without a serde.

        Examples
        --------
        >>> from headrace import StreamBuilder, serdes
        >>> builder = StreamBuilder("job")
        >>> builder.source("pictures", serdes.bytes).repartition().map_values(len)
        <stream 'map_values-pictures'>
        >>> builder.source("words", serdes.string).repartition(str.lower)
        <keyed stream 'repartition-words'>
        """
        flow = self._flow if key is None else self._keyed(key, name, on_error)
        step = flow.begin("repartition", name, on_error=on_error)
        if partitions is not None and partitions < 1:
            raise TopologyError(
                f"repartition at {step.caller.origin} has partitions={partitions}",
                hint="leave it out for all partitions of the job",
            )
        flow.key.check_key(step.name)
        operator = Repartition(
            **step.fields,
            value_serde=flow.value.needed_serde(step.name, "moves them to other tasks"),
            evenly=flow.key.hint is type(None),
            partitions=partitions,
        )
        moved = step.add(operator)
        if key is None:
            return self._same(moved)
        from headrace.streams.keyed import KeyedStream

        return KeyedStream(moved)

    def through(
        self,
        topic: str | None = None,
        *,
        queues: int = 8,
        serde: Serde[V] | None = None,
        name: str | None = None,
        on_error: ErrorPolicy = "fail",
    ) -> Self:
        """Write the records to a topic that the next batch reads, so that others see them too.

        They go to the queue of their key and stay in order per key; a stream without keys writes
        to one queue per task.  Keys, times, headers and what is known of late records stay as
        they are, so results are those that there would be without the topic, a batch later.

        Parameters
        ----------
        topic
            Name of the topic, which nothing else in the job reads or writes; by default
            ``JOB-ROCKETMQ-THROUGH-NUMBER-shuffleTopic`` with the place of the operator in the
            topology.  Where it is missing the job makes it.  A job that begins does not read
            what is there already.
        queues
            Queues that it is made with.
        serde
            Writes the values; by default as they are written between stages.
        name
            Name of the operator; the one that reads has ``-read`` behind it.
        on_error
            What becomes of a record that cannot be written, or read back; see :meth:`sink`.

        Raises
        ------
        TopologyError
            The values are of a type without a serde, or the keys are not plain data; ``queues``
            is below 1.

        Examples
        --------
        >>> from headrace import StreamBuilder, TopologyTestDriver, serdes
        >>> builder = StreamBuilder("words")
        >>> words = builder.source("words", serdes.string).key_by(str.lower).through()
        >>> words.count().to_stream().sink("counts", serdes.json)
        <end of 'sink-counts'>
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words", serdes.string).send("To")
        ...     driver.output("words-ROCKETMQ-THROUGH-00003-shuffleTopic", serdes.string).read().key
        ...     driver.output("counts", serdes.json).read().value
        'to'
        1
        """
        return self._same(loop(self._flow, topic, queues, serde, name, on_error))

    def _keyed(self, selector: Callable[..., Any], name: str | None, on_error: ErrorPolicy) -> Flow:
        from headrace import serdes

        own = f"{name}-key" if name else None
        step, takes_key = self._record_step("key_by", selector, own, on_error)
        known = step.known(result_hint(selector, step.caller.names))
        operator = KeyBy(
            **step.fields, selector=selector, takes_key=takes_key, key_serde=serdes.key
        )
        return step.add(operator, key=known)


def _output(parted: Flow, step: NextOperator, output: str) -> Flow:
    operator = Output(
        name=f"{step.name}-{output}",
        parents=(parted.operator,),
        output=output,
        origin=step.caller.origin,
    )
    parted.builder.add(operator)
    return replace(parted, operator=operator.name)


def _check_mergeable(flows: list[Flow], step: NextOperator) -> None:
    if len(flows) == 1:
        raise TopologyError(
            f"merge at {step.caller.origin} names no other stream",
            hint="for example web.merge(shop, phone)",
        )
    for flow in flows:
        if flow.builder is not step.flow.builder:
            raise TopologyError(
                f"merge at {step.caller.origin} takes '{flow.operator}' of builder"
                f" '{flow.builder.name}' into builder '{step.flow.builder.name}'",
                hint="read its topic with a source of this builder",
            )


def _common(found: list[Known], step: NextOperator, serde: Serde[Any] | None = None) -> Known:
    """Say what is known of records that may be of any of these kinds."""
    first = found[0]
    if serde is None and all((k.hint, k.serde) == (first.hint, first.serde) for k in found):
        return first
    same_type = all(known.hint == first.hint for known in found)
    return step.known(first.hint if same_type else Any, serde)
