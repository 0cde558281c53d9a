"""Operations of cases as topologies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import StreamBuilder, Topology, serdes
from headrace.runtime.stage import PROCESSORS
from headrace.topology.operators import Sink, Source
from tests.streams.cases.expressions import Expression, expression
from tests.streams.cases.grammar import Chain, Operation, parse
from tests.streams.cases.probes import watermarks
from tests.streams.cases.times import Bound, NotYetError, milliseconds, window
from tests.streams.cases.vocabulary import VOCABULARY

__all__ = ["Built", "build"]

_INTERVAL = re.compile(r"within \+-\s*(\d+)")
_OUTPUT = "out"
_PRESENT = expression("v != null", ["v"])


@dataclass(frozen=True, slots=True)
class Built:
    """A topology, and what is to be known of its results."""

    topology: Topology
    #: Topics that it reads, by the stream's name in the case.
    inputs: Mapping[str, str]
    #: Topics that it writes, by the output's name in the case.
    outputs: Mapping[str, str]
    #: Parameters of the case.
    params: Mapping[str, Any]
    #: Whether results replace earlier ones: then only the last of a key is promised.
    updates: bool = False
    #: Whether values are part of the results.
    values: bool = True


def build(case: Mapping[str, Any], name: str) -> Built:
    """Make the topology of a case; its topics begin with ``name``."""
    streams = list(dict.fromkeys(row["stream"] for row in case["input"]))
    building = _Building(StreamBuilder(name), name, case.get("params") or {}, streams)
    probe = PROBES.get(case["operation"])
    built = building.built(case["operation"]) if probe is None else probe(building)
    runs = (*PROCESSORS, Source, Sink)
    if missing := [o.label for o in built.topology.operators if not isinstance(o, runs)]:
        raise NotYetError(f"not yet: nothing runs {', '.join(missing)}")
    return built


@dataclass(slots=True)
class _Building:
    """One topology while it is put together."""

    builder: StreamBuilder
    name: str
    params: Mapping[str, Any]
    #: Streams that the case sends to.
    streams: list[str]
    sources: dict[str, Any] = field(default_factory=dict)

    def built(self, text: str) -> Built:
        """Make the topology of an operation that is written as chains."""
        operations = parse(text)
        outputs = {operation.output: self._add(operation) for operation in operations}
        updates = self.params.get("emit") == "update"
        return Built(self.builder.build(), self.inputs(), outputs, self.params, updates)

    def inputs(self) -> dict[str, str]:
        """Give the topics that are read."""
        return {stream: self.topic(stream) for stream in self.sources}

    def topic(self, stream: str) -> str:
        """Name the topic of a stream or an output."""
        return f"{self.name}-{stream}"

    def branch(self, chain: Chain) -> Any:
        """Add a chain and give the stream at its end."""
        place = Place(self, self.head(chain.head))
        place.follow(chain)
        return place.records()

    def head(self, stream: str) -> Any:
        """Give the source that a chain begins with."""
        if stream not in self.streams:
            assert len(self.streams) == 1, f"which of {self.streams} is {stream!r}?"
            stream = self.streams[0]
        if stream not in self.sources:
            self.sources[stream] = self._source(self.topic(stream))
        return self.sources[stream]

    def _add(self, operation: Operation) -> str:
        topic = self.topic(operation.output)
        self.branch(operation.chain).sink(topic, serdes.json)
        return topic

    def _source(self, topic: str) -> Any:
        """Read a topic of keyed JSON, whose queues are never taken for idle."""
        options = {
            "allowed_lateness": milliseconds(self.params.get("delay", 0)),
            "idle_timeout": milliseconds(86_400_000),
        }
        read: Any = self.builder.source
        try:
            return read(topic, serdes.with_key(serdes.json, of=object), **options)
        except TypeError as error:
            if any(self.params.get(name) for name in ("delay", "width")):
                raise NotYetError(f"not yet: {error}") from None
            return read(topic, serdes.with_key(serdes.json, of=object))


@dataclass(slots=True)
class Place:
    """Where a chain has come to."""

    building: _Building
    stream: Any
    windowed: bool = False
    #: A join that is not yet complete: its method, and the right side.
    join: tuple[str, Any] | None = None

    def follow(self, chain: Chain) -> None:
        """Apply every call of a chain, and what is said behind it."""
        for call in chain.calls:
            assert call.name in VOCABULARY, f"does not know the operation {call.name!r}"
            VOCABULARY[call.name](self, call)
        if chain.rest:
            self._said(chain.rest)

    def records(self) -> Any:
        """Give the stream of what is here."""
        if self.join is not None:
            self.finish_join(Bound())
        if hasattr(self.stream, "to_stream"):
            self.stream = self.stream.to_stream()
        return self.stream

    def call(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the stream; say so where there is none."""
        found: Callable[..., Any] | None = getattr(self.stream, method, None)
        if found is None:
            raise NotYetError(f"not yet: {type(self.stream).__name__}.{method}")
        self.stream = found(*arguments, **options)

    def aggregate(self, method: str, *arguments: Any) -> None:
        """Aggregate; without a window there is a result for each record."""
        emit = self.building.params.get("emit", "close") if self.windowed else "each"
        self.call(method, *arguments, emit=emit)
        self.windowed = False

    def begin_join(self, method: str, right: Any) -> None:
        """Note the right side of a join; its window comes behind it."""
        self.join = (method, right)

    def finish_join(self, bound: Bound) -> None:
        """Join, within a window or an interval, or without a bound."""
        assert self.join is not None, "a bound of a join needs a join"
        (method, right), self.join = self.join, None
        joiner = Joined(expression(self.building.params.get("joiner", "[l, r]"), ["l", "r"]))
        if self.building.params.get("null_value") == "dropped":
            self.stream, right = self.stream.filter(_PRESENT), right.filter(_PRESENT)
        self.call(method, right)
        self.stream = bound.apply(self.stream).apply(joiner)

    def window(self, kind: str) -> None:
        """Bound the join before it by windows, or divide the records of each key into them."""
        params = self.building.params
        chosen = window(kind, params)
        if self.join is not None:
            self.finish_join(Bound(window=chosen, grace=params.get("grace", 0)))
        else:
            grace = {"grace": milliseconds(params["grace"])} if "grace" in params else {}
            self.call("window", chosen, **grace)
            self.windowed = True

    def _said(self, text: str) -> None:
        if found := _INTERVAL.fullmatch(text):
            params = self.building.params
            before, after = (params.get(side, int(found[1])) for side in ("before", "after"))
            self.finish_join(Bound(before=before, after=after, grace=params.get("grace", 0)))
        else:
            assert text in ("on key, no window", "on key", "no window"), f"does not know {text!r}"


@dataclass(frozen=True, slots=True)
class Joined:
    """A joiner of two values."""

    function: Expression

    def __call__(self, left: Any, right: Any) -> Any:
        """Give the value of a pair."""
        return self.function(left, right)


def _watermarks(building: _Building) -> Built:
    """Ask for what every record makes of the watermark."""
    building.params = {**building.params, "delay": building.params["width"]}
    stream = building.head(building.streams[0])
    topic = building.topic(_OUTPUT)
    stream.sink(topic, serdes.json)
    (source,) = building.builder.build().sources
    topology = watermarks(building.name, source, topic, building.params["width"])
    return Built(topology, building.inputs(), {_OUTPUT: topic}, building.params)


def _assigned(building: _Building) -> Built:
    """Ask for the windows of every record: each makes a result when the record comes."""
    bound = window("hopping", building.params)
    stream = building.head(building.streams[0]).group_by_key()
    if not hasattr(stream, "window"):
        raise NotYetError(f"not yet: {type(stream).__name__}.window")
    topic = building.topic(_OUTPUT)
    stream.window(bound).count(emit="update").to_stream().sink(topic, serdes.json)
    return Built(
        building.builder.build(),
        building.inputs(),
        {_OUTPUT: topic},
        building.params,
        updates=True,
        values=False,
    )


#: Operations that ask of the engine what no chain of operators shows.
PROBES: dict[str, Callable[[_Building], Built]] = {
    "watermark": _watermarks,
    "assign_windows": _assigned,
}
