"""Topologies of spouts and bolts wired by hand, node by node: the runtime without its front door."""

from __future__ import annotations

from typing import Any

from headrace import serdes
from headrace.topology import (
    DEFAULT_STREAM,
    Bolt,
    Grouping,
    GroupingKind,
    KeyValueBoltNode,
    Map,
    Operator,
    Origin,
    Sink,
    Source,
    Spout,
    StatefulBoltNode,
    Subscription,
    Topology,
    Tuples,
)
from headrace.transactions import FieldsDeclarer, KeyValueBolt, StatefulBolt

HERE = Origin("job.py", 7)


class Wiring:
    """Adds nodes, and subscriptions between them."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._streams: dict[str, FieldsDeclarer] = {}

    def spout(self, name: str, component: Any, tasks: int = 1, **options: Any) -> Wiring:
        """Add a spout."""
        options = {"batch_size": 3, "delay_ms": 1000, **options}
        self.operators.append(
            Spout(**self._common(name, component, tasks, ()), state_serde=serdes.state, **options)
        )
        return self

    def topic(
        self, name: str, topic: str, fields: tuple[str, ...], key: str | None = None
    ) -> Wiring:
        """Add a topic as a spout."""
        declarer = self._streams[name] = FieldsDeclarer()
        declarer.declare(*((key,) if key else ()), *fields)
        self.operators += [
            Source(
                name=f"{name}-topic",
                parents=(),
                topic=topic,
                deserializer=serdes.as_deserializer(serdes.json),
            ),
            Tuples(name=name, parents=(f"{name}-topic",), fields=fields, key_field=key),
        ]
        return self

    def bolt(
        self,
        name: str,
        component: Any,
        *inputs: tuple[str, GroupingKind] | tuple[str, GroupingKind, Any],
        tasks: int = 1,
        stream: str = DEFAULT_STREAM,
        on_error: str = "fail",
    ) -> Wiring:
        """Add a bolt with its subscriptions: source, kind, and fields or the custom grouping."""
        ways = [self._way(name, each, stream) for each in inputs]
        self.operators += ways
        parents = tuple(way.name for way in ways)
        common = {
            **self._common(name, component, tasks, parents),
            "groupings": tuple(way.grouping for way in ways),
            "on_error": on_error,
        }
        if isinstance(component, KeyValueBolt):
            own: dict[str, Any] = {"key_serde": serdes.key, "value_serde": serdes.state}
            self.operators.append(KeyValueBoltNode(**common, **own))
        elif isinstance(component, StatefulBolt):
            self.operators.append(StatefulBoltNode(**common, state_serde=serdes.state))
        else:
            self.operators.append(Bolt(**common))
        return self

    def sink(self, name: str, source: str, topic: str) -> Wiring:
        """Add a topic that takes tuples: the first value is the key."""
        records = Map(name=f"{name}-records", parents=(source,), function=_record, takes_key=True)
        serializer = serdes.as_serializer(serdes.json)
        sink = Sink(name=name, parents=(records.name,), topic=topic, serializer=serializer)
        self.operators += [records, sink]
        return self

    def build(self, name: str = "sentences") -> Topology:
        """Make the topology."""
        return Topology(name, tuple(self.operators))

    def _way(self, name: str, given: tuple[Any, ...], stream: str) -> Subscription:
        source, kind, *more = given
        fields = self._streams[source].streams[stream]
        named = more[0] if more and kind == "fields" else ()
        custom = more[0] if more and kind == "custom" else None
        return Subscription(
            name=f"{source}-{stream}-to-{name}",
            parents=(source,),
            output="" if stream == DEFAULT_STREAM else stream,
            grouping=Grouping(kind, tuple(map(fields.index, named)), custom),
            component=name,
            tasks=1,
            source_component=source,
            stream=stream,
            fields=fields,
        )

    def _common(
        self, name: str, component: Any, tasks: int, parents: tuple[str, ...]
    ) -> dict[str, Any]:
        declarer = self._streams[name] = FieldsDeclarer()
        component.declare_output_fields(declarer)
        return {
            "name": name,
            "parents": parents,
            "origin": HERE,
            "component": component,
            "parallelism": tasks,
            "streams": declarer.streams,
            "direct_streams": frozenset(declarer.direct_streams),
            "config": {},
        }


def _record(key: object, values: tuple[Any, ...]) -> tuple[Any, Any]:
    del key
    return values[0], values[1] if len(values) == 2 else list(values[1:])
