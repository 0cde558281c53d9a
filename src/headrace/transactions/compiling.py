"""From components to operators: one engine topology per group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import TopologyError
from headrace.serdes import Serde, StateSerde, as_deserializer, as_serializer, key, with_key
from headrace.topology import (
    DEFAULT_STREAM,
    Bolt,
    Grouping,
    KeyValueBoltNode,
    Map,
    Merge,
    Operator,
    Repartition,
    Sink,
    Source,
    Spout,
    StatefulBoltNode,
    Subscription,
    Topology,
    Tuples,
)
from headrace.transactions.components import KeyValueBolt, OffsetSpout
from headrace.transactions.kinds import is_stateful
from headrace.transactions.topics import OffsetReader, RecordOf, TopicSink, TopicSpout

if TYPE_CHECKING:
    from headrace.transactions.config import Configuration
    from headrace.transactions.declaring import Declared, Input
    from headrace.transactions.graph import Group

__all__ = ["compile_group", "state_serde"]

#: What goes from task to task and never through a topic may be anything.
_BETWEEN = StateSerde(pickles=True)


def compile_group(
    name: str, group: Group, components: Mapping[str, Declared], config: Configuration
) -> Topology:
    """Make the engine's topology of a group.

    Raises
    ------
    TopologyError
        The engine cannot run it.
    """
    work = _Compiling(group, components, config)
    for member in group.members:
        work.add(components[member])
    return Topology(name, tuple(work.operators))


def state_serde(config: Configuration) -> StateSerde:
    """Give the serde of what a topology keeps and of what its journals hold."""
    return StateSerde(pickles=config["topology.fall.back.on.pickle"])


@dataclass
class _Compiling:
    group: Group
    components: Mapping[str, Declared]
    config: Configuration
    operators: list[Operator] = field(default_factory=list)

    @property
    def _state(self) -> StateSerde:
        return state_serde(self.config)

    def add(self, declared: Declared) -> None:
        """Add what runs one component."""
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
        """Give the subscriptions to components of this group."""
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
    """Name an operator's output for a stream: the default one is the one without a name."""
    return "" if stream == DEFAULT_STREAM else stream


def _way_name(taken: Input, component: str) -> str:
    return "-".join(filter(None, (taken.source, _output(taken.stream), "to", component)))
