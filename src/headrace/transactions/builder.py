"""TransactionTopologyBuilder: where a topology of spouts and bolts starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import TopologyError
from headrace.serdes import Serde, StateSerde, as_deserializer, as_serializer, key, with_key
from headrace.topology import (
    DEFAULT_STREAM,
    Bolt,
    BoltCollector,
    Grouping,
    KeyValueBoltNode,
    Map,
    Merge,
    Operator,
    Origin,
    Repartition,
    Sink,
    Source,
    Spout,
    SpoutCollector,
    StatefulBoltNode,
    Subscription,
    TaskContext,
    Topology,
    Tuple,
    Tuples,
    check_pickling,
)
from headrace.topology.callers import caller
from headrace.topology.names import check_job_name, check_operator_name, check_topic, spout_topic
from headrace.transactions.components import FieldsDeclarer, KeyValueBolt, OffsetSpout
from headrace.transactions.config import Configuration
from headrace.transactions.graph import (
    ComponentGroup,
    TransactionTopology,
    check_inputs,
    groups_of,
    in_order,
)
from headrace.transactions.journal import JournalSpout
from headrace.transactions.topics import (
    BoltDeclarer,
    Declared,
    Input,
    Kind,
    OffsetReader,
    RecordOf,
    Role,
    SinkDeclarer,
    TopicSink,
    TopicSpout,
    check_bolt,
    check_spout,
    is_stateful,
    outputs_of,
)

# From components to operators: one engine topology per group.

#: Values that go from task to task and never through a topic may be any objects.
_BETWEEN = StateSerde(pickles=True)


def compile_group(
    name: str, group: ComponentGroup, components: Mapping[str, Declared], config: Configuration
) -> Topology:
    """Make the engine's topology of a group.

    Raises
    ------
    TopologyError
        If the engine cannot run it.
    """
    work = _Compiling(group, components, config)
    for member in group.members:
        work.add(components[member])
    return Topology(name, tuple(work.operators))


def state_serde(config: Configuration) -> StateSerde:
    """Return the serde of what a topology keeps and of what its journals hold."""
    return StateSerde(pickles=config["topology.fall.back.on.pickle"])


@dataclass
class _Compiling:
    group: ComponentGroup
    components: Mapping[str, Declared]
    config: Configuration
    operators: list[Operator] = field(default_factory=list)

    @property
    def _state(self) -> StateSerde:
        return state_serde(self.config)

    def add(self, declared: Declared) -> None:
        """Add the operators that run one component."""
        component = declared.component
        if isinstance(component, TopicSpout):
            self.operators += _topic_spout(declared, component)
        elif isinstance(component, TopicSink):
            self.operators += self._topic_sink(declared, component)
        elif declared.role == "bolt":
            self.operators += self._bolt(declared)
        else:
            self.operators.append(self._spout(declared))

    def _spout(self, declared: Declared) -> Operator:
        limit: int = self.config["tuple.num.per.batch"]
        component = declared.component
        by_offset = isinstance(component, OffsetSpout)
        return Spout(
            **self._component(declared, (), OffsetReader(component, limit))
            if by_offset
            else self._component(declared, (), component),
            state_serde=self._state,
            # What lies between two offsets is one batch, whatever the number of its tuples.
            batch_size=0 if by_offset else limit,
            delay_ms=self.config["transaction.schedule.batch.delay.ms"],
        )

    def _bolt(self, declared: Declared) -> list[Operator]:
        component = declared.component
        keyed = isinstance(component, KeyValueBolt)
        tasks: int = self.config["key.range.num"] if keyed else declared.parallelism
        inputs = self._inputs(declared)
        ways = [self._subscription(declared, each, tasks) for each in inputs]
        fields = self._component(declared, tuple(way.name for way in ways), component)
        fields |= {
            "groupings": tuple(way.grouping for way in ways),
            "on_error": self.config["poison.policy"],
        }
        if keyed:
            fields |= {"key_serde": key, "value_serde": self._state, "ranges": tasks}
            return [*ways, KeyValueBoltNode(**fields)]
        if is_stateful(component):
            return [*ways, StatefulBoltNode(**fields, state_serde=self._state)]
        return [*ways, Bolt(**fields)]

    def _component(
        self, declared: Declared, parents: tuple[str, ...], component: object
    ) -> dict[str, Any]:
        return {
            "name": declared.name,
            "parents": parents,
            "origin": declared.origin,
            "component": component,
            "parallelism": declared.parallelism,
            "streams": declared.streams,
            "direct_streams": declared.direct_streams,
            "group_id": self.group.number,
            "config": dict(self.config),
        }

    def _inputs(self, declared: Declared) -> list[Input]:
        """Return the subscriptions to components of this group."""
        return [each for each in declared.inputs if each.source in self.group.members]

    def _fields(self, taken: Input) -> tuple[str, ...]:
        return self.components[taken.source].streams[taken.stream]

    def _subscription(self, declared: Declared, taken: Input, tasks: int) -> Subscription:
        fields = self._fields(taken)
        places = tuple(fields.index(name) for name in taken.fields)
        return Subscription(
            name=_way_name(taken, declared.name),
            parents=(taken.source,),
            output=_output(taken.stream),
            origin=taken.origin,
            grouping=Grouping(taken.kind, places, taken.custom),
            component=declared.name,
            tasks=tasks,
            source_component=taken.source,
            stream=taken.stream,
            fields=fields,
        )

    def _topic_sink(self, declared: Declared, sink: TopicSink) -> Iterator[Operator]:
        inputs = self._inputs(declared)
        records = [
            Map(
                name=_way_name(taken, declared.name),
                parents=(taken.source,),
                output=_output(taken.stream),
                origin=taken.origin,
                function=_record_of(declared, sink, taken, self._fields(taken)),
                takes_key=True,
            )
            for taken in inputs
        ]
        yield from records
        parents = tuple(each.name for each in records)
        common: dict[str, Any] = {"origin": declared.origin}
        if len(records) > 1:
            name = f"{declared.name}-records"
            yield Merge(name=name, parents=parents, value_serde=_BETWEEN, **common)
            parents = (name,)
        if any(taken.kind == "fields" for taken in inputs):
            name = f"{declared.name}-by-key"
            yield Repartition(name=name, parents=parents, value_serde=_BETWEEN, **common)
            parents = (name,)
        serializer = as_serializer(sink.serializer)
        yield Sink(
            name=declared.name, parents=parents, topic=sink.topic, serializer=serializer, **common
        )


def _topic_spout(declared: Declared, spout: TopicSpout) -> Iterator[Operator]:
    reader = as_deserializer(spout.deserializer)
    if spout.key_field is not None and isinstance(spout.deserializer, Serde):
        # A serde reads values only; the key is the message's own, of whatever type.
        reader = with_key(spout.deserializer, of=object)
    source = Source(
        name=f"{declared.name}-topic",
        parents=(),
        origin=declared.origin,
        topic=spout.topic,
        deserializer=reader,
        start=spout.start,
        start_once=spout.start_once,
    )
    yield source
    yield Tuples(
        name=declared.name,
        parents=(source.name,),
        origin=declared.origin,
        fields=spout.value_fields,
        key_field=spout.key_field,
    )


def _record_of(
    declared: Declared, sink: TopicSink, taken: Input, fields: tuple[str, ...]
) -> RecordOf:
    keys = taken.fields if sink.key_field is None else (sink.key_field,)
    if taken.kind == "fields" and taken.fields != keys:
        raise TopologyError(
            f"'{declared.name}' at {taken.origin} groups by {', '.join(taken.fields)}, but its"
            f" messages have the key '{sink.key_field}' (added at {declared.origin})",
            hint=f"group by '{sink.key_field}', or leave key_field out",
        )
    own = () if sink.key_field is None else keys
    names = sink.fields or tuple(name for name in fields if name not in own) or fields
    for name in (*keys, *names):
        if name not in fields:
            raise TopologyError(
                f"'{declared.name}' (added at {declared.origin}) writes field {name!r}, which"
                f" '{taken.source}' (taken at {taken.origin}) does not emit",
                hint=f"it emits {', '.join(fields)}",
            )
    return RecordOf(tuple(map(fields.index, keys)), tuple(map(fields.index, names)), tuple(names))


def _output(stream: str) -> str:
    """Name an operator's output for a stream; that of the default stream has no name."""
    return "" if stream == DEFAULT_STREAM else stream


def _way_name(taken: Input, component: str) -> str:
    return "-".join(filter(None, (taken.source, _output(taken.stream), "to", component)))


class BoltLike(Protocol):
    """The methods of a bolt; one with the callbacks of state, too, is stateful."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields of what is emitted."""

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Get ready, before any tuple comes."""

    def execute(self, taken: Tuple, /) -> None:
        """Take a tuple."""

    def cleanup(self) -> None:
        """Release what ``prepare`` took."""


class SpoutLike(Protocol):
    """The methods of a spout, besides the callbacks of state."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields of what is emitted."""

    def prepare(self, context: TaskContext) -> None:
        """Get ready to emit."""

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit tuples, if there are any."""

    def finish_batch(self) -> Any:
        """End a batch."""

    def cleanup(self) -> None:
        """Release what ``prepare`` took."""


class TransactionTopologyBuilder:
    """Builds a topology of spouts and bolts whose batches succeed or roll back as a whole.

    Parameters
    ----------
    name
        The topology: prefix of the topics that it makes for itself, and its consumer group.
    config
        Configuration by JStorm's keys, such as ``{"tuple.num.per.batch": 10_000}``.

    Raises
    ------
    TopologyError
        If no topic could be named after the topology.
    SettingsError
        If the configuration cannot work.

    Examples
    --------
    >>> from headrace import serdes
    >>> from headrace.transactions import Bolt, TopicSink, TopicSpout, TransactionTopologyBuilder
    >>> class Split(Bolt):
    ...     def declare_output_fields(self, declarer):
    ...         declarer.declare("word")
    ...
    ...     def prepare(self, context, collector):
    ...         self.collector = collector
    ...
    ...     def execute(self, taken):
    ...         for word in taken["line"].split():
    ...             self.collector.emit([word])
    >>> builder = TransactionTopologyBuilder("words")
    >>> builder.set_spout("lines", TopicSpout("lines", serdes.string, fields=["line"]))
    >>> builder.set_bolt("split", Split(), parallelism=2).local_or_shuffle_grouping("lines")
    <inputs of 'split'>
    >>> builder.set_sink("out", TopicSink("words", serdes.string)).shuffle_grouping("split")
    <inputs of 'out'>
    >>> print(builder.build().describe())
    transaction topology words
      group 0, job words: spout lines
        lines  spout, TopicSpout
        split  non-stateful bolt, Split, <- lines (local_or_shuffle)
        out    end bolt, TopicSink('words'), <- split (shuffle)
    topology words
      stage 0
        lines-topic     reads lines, deserializer string
        lines           <- lines-topic, fields line
        lines-to-split  <- lines, local_or_shuffle grouping
        split           <- lines-to-split, Split, 2 tasks
        split-to-out    <- split
        out             <- split-to-out, writes words, serializer string
      topics
        lines              read by lines-topic
        words              written by out
        words-commitTopic  commits of the job
    """

    def __init__(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        check_job_name(name, "TransactionTopologyBuilder(name)")
        self.name = name
        self.config = Configuration(config)
        self._components: dict[str, Declared] = {}
        self._inputs: dict[str, BoltDeclarer | SinkDeclarer] = {}
        self._journals: list[str] = []

    def __repr__(self) -> str:
        return f"TransactionTopologyBuilder({self.name!r})"

    def set_spout(
        self, name: str, spout: SpoutLike | OffsetSpout | TopicSpout, parallelism: int | None = None
    ) -> None:
        """Add a spout.

        Parameters
        ----------
        name
            Its name in the topology.
        spout
            A :class:`Spout`, which replays from its state; an :class:`OffsetSpout`, whose tuples
            have offsets; a :class:`TopicSpout`; or a :class:`JournalSpout` around one that can
            do neither.
        parallelism
            Number of its tasks, 1 unless given; a topic has the tasks that its queues ask for.

        Raises
        ------
        TopologyError
            If it is not a spout, cannot replay, or its name is taken.
        """
        origin = caller().origin
        what = f"spout '{name}'"
        check_spout(what, spout, origin)
        if isinstance(spout, TopicSpout) and parallelism is not None:
            raise TopologyError(
                f"{what} at {origin} has parallelism={parallelism!r}, but the queues of a topic"
                " decide how many tasks read it",
                hint="leave parallelism out",
            )
        if isinstance(spout, JournalSpout):
            self._add_journalled(name, spout, parallelism or 1, origin)
            return
        self._add("spout", name, spout, 1 if parallelism is None else parallelism, origin)

    def set_bolt(self, name: str, bolt: BoltLike, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; the groupings of the returned object say which tuples it takes.

        Parameters
        ----------
        name
            Its name in the topology.
        bolt
            A :class:`Bolt`, :class:`StatefulBolt` or :class:`KeyValueBolt`.
        parallelism
            Number of its tasks.  That of a key-value bolt may be changed at any start; the state
            of a stateful bolt belongs to its tasks.

        Raises
        ------
        TopologyError
            If it is not a bolt, or its name is taken.
        """
        origin = caller().origin
        what = f"bolt '{name}'"
        check_bolt(what, bolt, origin)
        self._add("bolt", name, bolt, parallelism, origin)
        declarer = self._inputs[name] = BoltDeclarer(name)
        return declarer

    def set_sink(self, name: str, sink: TopicSink) -> SinkDeclarer:
        """Add an end bolt that writes tuples to a topic; groupings say which, as for a bolt.

        Raises
        ------
        TopologyError
            If it is not a :class:`TopicSink`, or its name is taken.
        """
        origin = caller().origin
        what = f"sink '{name}'"
        if not isinstance(sink, TopicSink):
            raise TopologyError(
                f"{what} at {origin} is {sink!r:.100}", hint="give a TopicSink(topic, serializer)"
            )
        self._add("sink", name, sink, 1, origin)
        declarer = self._inputs[name] = SinkDeclarer(name)
        return declarer

    def build(self) -> TransactionTopology:
        """Check what was added, and return it as immutable topologies, one per group.

        Raises
        ------
        TopologyError
            If something is wrong; the message names it, with the user's lines.
        """
        components = {
            name: declared.taking(self._inputs[name].inputs) if name in self._inputs else declared
            for name, declared in self._components.items()
        }
        if not components:
            raise TopologyError(
                f"topology '{self.name}' is empty", hint="start with set_spout(name, spout)"
            )
        check_inputs(self.name, components)
        groups = groups_of(components, in_order(components))
        topologies = tuple(
            compile_group(self._job(group), group, components, self.config) for group in groups
        )
        for topology in topologies:
            check_pickling(topology.operators)
        return TransactionTopology(
            self.name,
            topologies,
            self.config,
            _kinds(components),
            tuple(self._journals),
            tuple(groups),
            components,
        )

    def _job(self, group: ComponentGroup) -> str:
        # The first keeps the name, so that a spout that is added later renames no job.
        if group.number == 0:
            return self.name
        name = f"{self.name}-{group.spouts[0]}"
        check_job_name(name, f"TransactionTopologyBuilder(name), or of spout '{group.spouts[0]}'")
        return name

    def _add_journalled(
        self, name: str, spout: JournalSpout, parallelism: int, origin: Origin
    ) -> None:
        """Add a spout that writes to a topic, and the topic as the spout for bolts."""
        what = f"spout '{name}'"
        outputs = outputs_of(what, spout, origin)
        if list(outputs.streams) != [DEFAULT_STREAM] or outputs.direct_streams:
            raise TopologyError(
                f"{what} at {origin} is a JournalSpout that declares the streams"
                f" {', '.join(outputs.streams) or 'none'}",
                hint="it emits to the stream 'default' only, with declarer.declare(...)",
            )
        topic, fields = spout_topic(self.name, name), outputs.streams[DEFAULT_STREAM]
        check_topic(topic, f"{what} ({origin})")
        serde = state_serde(self.config)
        self._add("spout", name, TopicSpout(topic, serde, fields=fields), 1, origin)
        self._add("spout", f"{name}-source", spout, parallelism, origin)
        self._add("sink", f"{name}-journal", TopicSink(topic, serde, fields=fields), 1, origin)
        declarer = self._inputs[f"{name}-journal"] = SinkDeclarer(f"{name}-journal")
        declarer.shuffle_grouping(f"{name}-source")
        self._journals.append(topic)

    def _add(self, role: Role, name: str, component: Any, parallelism: int, origin: Origin) -> None:
        check_operator_name(self.name, name, f"added at {origin}", stateful=False)
        known = self._components.get(name)
        if known is not None:
            raise TopologyError(
                f"two components have the name '{name}': one added at {known.origin}, one at"
                f" {origin}",
                hint="give one of them another name",
            )
        what = f"{role} '{name}'"
        given: object = parallelism
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise TopologyError(
                f"{what} at {origin} has parallelism={parallelism!r}",
                hint="it is the number of tasks, at least 1",
            )
        declarer = FieldsDeclarer() if role == "sink" else outputs_of(what, component, origin)
        self._components[name] = Declared(
            name=name,
            role=role,
            component=component,
            parallelism=parallelism,
            origin=origin,
            streams=dict(declarer.streams),
            direct_streams=frozenset(declarer.direct_streams),
        )


def _kinds(components: Mapping[str, Declared]) -> dict[str, frozenset[Kind]]:
    taken = {each.source for declared in components.values() for each in declared.inputs}
    return {name: frozenset(_kind(declared, taken)) for name, declared in components.items()}


def _kind(declared: Declared, taken: set[str]) -> list[Kind]:
    if declared.role == "spout":
        return ["spout"]
    kinds: list[Kind] = []
    if is_stateful(declared.component):
        kinds.append("stateful bolt")
    if declared.name not in taken:
        kinds.append("end bolt")
    return kinds or ["non-stateful bolt"]
