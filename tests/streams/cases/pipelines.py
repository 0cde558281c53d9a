"""Operations of cases as topologies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace import StreamBuilder, Table, Topology, serdes
from tests.streams.cases.expressions import expression
from tests.streams.cases.grammar import Chain, Operation, parse
from tests.streams.cases.joining import Joining
from tests.streams.cases.probes import watermarks
from tests.streams.cases.times import NotYetError, Span, milliseconds, window
from tests.streams.cases.vocabulary import VOCABULARY

__all__ = ["Built", "build"]

_OUTPUT = "out"
_PRESENT = expression("v != null", ["v"])
_KEYED = serdes.with_key(serdes.json, of=object)
#: Words that a chain may begin with: the kind of what is read.
_READS = {"table": "table", "globalTable": "global_table", "source": "source", "stream": "source"}


@dataclass(frozen=True, slots=True)
class Built:
    """What a case is as a part of a topology, and what is to be known of its results."""

    builder: StreamBuilder
    #: Topics that it reads, by the stream's name in the case.
    inputs: Mapping[str, str]
    #: Topics that it writes, by the output's name in the case.
    outputs: Mapping[str, str]
    #: Whether results replace earlier ones: then only the last of a key is promised.
    updates: bool = False
    #: Whether values are part of the results.
    values: bool = True
    #: Gap of the sessions of each output, ms: the file ends a session at its last event.
    gaps: Mapping[str, int] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """Topology of the case, and of all others that have the same builder."""
        return self.builder.build()


def build(case: Mapping[str, Any], name: str, builder: StreamBuilder | None = None) -> Built:
    """Make the topology of a case, or add it to a builder; its topics begin with ``name``."""
    streams = list(dict.fromkeys(row["stream"] for row in case["input"]))
    params = case.get("params") or {}
    text = case["operation"]
    named = any(re.search(rf"\b{re.escape(stream)}\b", text) for stream in streams)
    building = Building(builder or StreamBuilder(name), name, params, streams, named)
    probe = PROBES.get(text)
    return building.built(text) if probe is None else probe(building)


@dataclass(slots=True)
class Building:
    """One topology while it is put together."""

    builder: StreamBuilder
    name: str
    params: Mapping[str, Any]
    #: Streams that the case sends to.
    streams: list[str]
    #: Whether the operation names streams as the records do.
    named: bool
    #: What is read so far, by stream and by what it is read as.
    sources: dict[tuple[str, str], Any] = field(default_factory=dict)
    #: The windows that were aggregated last: their late records may be an output, too.
    windowed: Any = None

    def built(self, text: str) -> Built:
        """Make the topology of an operation that is written as chains."""
        gaps: dict[str, int] = {}
        outputs = {operation.output: self._add(operation, gaps) for operation in parse(text)}
        return Built(self.builder, self.inputs(), outputs, self.emit == "update", gaps=gaps)

    @property
    def emit(self) -> str:
        """When windows give results."""
        said = str(self.params.get("emit", "close")).lower()
        return "update" if any(word in said for word in ("update", "each", "record")) else "close"

    def inputs(self) -> dict[str, str]:
        """Give the topics that are read."""
        return {stream: self.topic(stream) for stream, _ in self.sources}

    def topic(self, stream: str) -> str:
        """Name the topic of a stream or an output."""
        return f"{self.name}-{stream}"

    def branch(self, chain: Chain) -> Any:
        """Add a chain and give the stream, or the table, at its end."""
        return Place.of(self, chain).finished()

    def read(self, stream: str, kind: str = "source") -> Any:
        """Give what a chain begins with."""
        if stream == "late" and stream not in self.streams and self.windowed is not None:
            return self.windowed.late()
        if stream not in self.streams and not self.named:
            # A case of one stream calls it as it likes; else it is one that nothing is sent to.
            assert len(self.streams) == 1, f"which of {self.streams} is {stream!r}?"
            stream = self.streams[0]
        if (stream, kind) not in self.sources:
            self.sources[stream, kind] = self._source(self.topic(stream), kind)
        return self.sources[stream, kind]

    def _add(self, operation: Operation, gaps: dict[str, int]) -> str:
        topic = self.topic(operation.output)
        place = Place.of(self, operation.chain)
        place.records().sink(topic, serdes.json)
        if place.gap is not None:
            gaps[operation.output] = place.gap
        return topic

    def _source(self, topic: str, kind: str) -> Any:
        """Read a topic of keyed JSON, whose queues are never taken for idle."""
        delay = self.params.get("delay", self.params.get("width", 0))
        return getattr(self.builder, kind)(
            topic,
            _KEYED,
            allowed_lateness=milliseconds(delay),
            idle_timeout=milliseconds(86_400_000),
        )


@dataclass(slots=True)
class Place:
    """Where a chain has come to."""

    building: Building
    stream: Any
    #: What is said behind the chain; it holds for the first join.
    said: Joining
    windows: Span | None = None
    join: Joining | None = None
    #: How many windows there were.
    count: int = 0
    #: Gap of the sessions that made the results, ms.
    gap: int | None = None

    @classmethod
    def of(cls, building: Building, chain: Chain) -> Place:
        """Begin a chain and follow it to its end."""
        head, calls = chain.head, list(chain.calls)
        kind = _READS.get(calls[0].name) if calls and not head else None
        if kind and calls[0].argument in (*building.streams, "", "in"):
            head = calls.pop(0).argument or ""
        place = cls(building, building.read(head, kind or "source"), Joining())
        place.said.hear(chain.rest)
        for call in calls:
            word = VOCABULARY.get(call.name) or VOCABULARY.get(_camel(call.name))
            assert word is not None, f"does not know the operation {call.name!r}"
            word(place, call)
        return place

    def finished(self) -> Any:
        """Give the stream or table that is here."""
        if self.join is not None:
            self.finish_join()
        return self.stream

    def records(self) -> Any:
        """Give what is here as a stream."""
        found = self.finished()
        return found.to_stream() if isinstance(found, Table) else found

    def call(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call a method of the stream; say so where there is none."""
        self.finished()
        if not hasattr(self.stream, method) and isinstance(self.stream, Table):
            self.stream = self.stream.to_stream()
        found: Callable[..., Any] | None = getattr(self.stream, method, None)
        if found is None:
            raise NotYetError(f"not yet: {type(self.stream).__name__}.{method}")
        self.stream = found(*arguments, **options)

    def aggregate(self, method: str, *arguments: Any) -> None:
        """Aggregate; without a window there is a result for each record."""
        if self.windows is None:
            emit = "update" if self.building.params.get("emit") == "update" else "each"
            self.call(method, *arguments, emit=emit)
            self.stream = self.stream.to_stream()
            return
        grace = milliseconds(self.building.params.get("grace", 0))
        self.call("window", self.windows.windows, grace=grace)
        self.call(method, *arguments, emit=self.building.emit)
        self.building.windowed, self.gap = self.stream, self.windows.gap
        self.stream, self.windows = self.stream.to_stream(), None

    def late(self) -> None:
        """Go on with the records that came too late for the windows before it."""
        assert self.building.windowed is not None, "late records are those of windows"
        self.stream = self.building.windowed.late()

    def begin_join(self, method: str, right: Any) -> None:
        """Note the right side of a join; what bounds it comes behind it."""
        self.finished()
        self.join = self.said.with_right(method, right)

    def begun(self) -> Joining:
        """Give the join that was begun."""
        assert self.join is not None, "what belongs to a join needs a join before it"
        return self.join

    def finish_join(self, joiner: str | None = None) -> None:
        """Make the join that was begun."""
        join, self.join = self.begun(), None
        if self.building.params.get("null_value") == "dropped":
            # Of tables, None deletes.
            if not join.left_is_table:
                self.stream = self.stream.where(_PRESENT)
            if not join.tables:
                join.right = join.right.where(_PRESENT)
        self.stream = join.made(self.stream, self.building.params, joiner)

    def window(self, kind: str) -> None:
        """Bound the join before it by windows, or divide the records of each key into them."""
        self.count += 1
        self.windows = window(kind, self.building.params, self.count)
        if self.join is not None:
            self.join.windows, self.gap, self.windows = self.windows, self.windows.gap, None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _watermarks(building: Building) -> Built:
    """Ask for what every record makes of the watermark."""
    width = building.params.get("width", building.params.get("delay", 0))
    source = building.read(building.streams[0]).name
    topic = building.topic(_OUTPUT)
    for operator in watermarks(source, topic, width):
        building.builder.add(operator)
    return Built(building.builder, building.inputs(), {_OUTPUT: topic})


def _assigned(building: Building) -> Built:
    """Ask for the windows of every record: each makes a result when the record comes."""
    kind = "hopping" if "slide" in building.params else "tumbling"
    bound = window(kind, building.params)
    topic = building.topic(_OUTPUT)
    keyed = building.read(building.streams[0]).group_by_key()
    keyed.window(bound.windows).count(emit="update").to_stream().sink(topic, serdes.json)
    outputs = {_OUTPUT: topic}
    return Built(building.builder, building.inputs(), outputs, updates=True, values=False)


#: Operations that ask of the engine what no chain of operators shows.
PROBES: dict[str, Callable[[Building], Built]] = {
    "watermark": _watermarks,
    "watermarks": _watermarks,
    "assign_windows": _assigned,
}
