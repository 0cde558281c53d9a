"""The jobs that are simulated, and what their results must be, worked out from their input alone."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from headrace import StreamBuilder, Topology, serdes
from headrace.keys import EXACT_KEY, decode_keys, key_from_properties
from headrace.protocol.messages import StoredMessage
from headrace.runtime.state.store import decode_entries
from headrace.topology.windows import tumbling
from tests.simulation.bolts import TICK, TICKS, bolts

JOB = "simulated"
LINES, OTHERS, RESULTS, COUNTS = "lines", "others", "results", "counts"
QUEUES = 2
#: Lines of the last key are dropped, so that there are batches without output.
KEYS, DROPPED = "abxx", "x"
#: Ends all windows.
LAST = "x-100000"

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_STEP = timedelta(milliseconds=10)
_WINDOW = 4
_WITHIN = 3


class Line(NamedTuple):
    """A record of the input, and where it lies: in which log, and at which position."""

    text: str
    position: int
    broker: str


Lines = Mapping[str, Sequence[Sequence[Line]]]
"""What lies in the input up to some offsets: by topic, by queue."""


class Expectation(ABC):
    """What results there are, and whether they are those of the input."""

    #: Whether it holds only when all of the input is committed.
    only_at_end = True

    @abstractmethod
    def take(self, topic: str, message: StoredMessage) -> None:
        """Note a result; one that is there again is not shown."""

    @abstractmethod
    def disagreement(self, lines: Lines) -> str | None:
        """Say what is not as it must be; None: all is."""


class Counted(Expectation):
    """Each line is there once, each count follows the one before, and state is their sum."""

    only_at_end = False

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        #: By queue: state moves to others when the job gets another number of partitions.
        self._state: dict[tuple[object, ...], dict[str, int]] = defaultdict(dict)
        self._wrong: str | None = None

    def take(self, topic: str, message: StoredMessage) -> None:
        if topic == RESULTS:
            self._seen[message.body.decode()] += 1
        elif topic == COUNTS:
            key, count = key_from_properties(message.properties), int(message.body)
            self._counts[key] += 1
            if count != self._counts[key]:
                self._wrong = f"count {count} of {key} comes as {self._counts[key]}."
        else:
            told = message.properties
            (key,) = decode_keys([bytes.fromhex(told.get(EXACT_KEY) or told["KEYS"])])
            held = self._state[message.store_host, message.queue_id]
            held.pop(key, None)
            if message.body:
                _, values = decode_entries(pa.array([message.body], pa.binary()))
                held[key] = serdes.int.deserialize(values[0])

    def disagreement(self, lines: Lines) -> str | None:
        wanted = Counter(line for line in _all(lines[LINES]) if line[0] != DROPPED)
        keys = Counter(line[0] for line in wanted.elements())
        if self._wrong is not None:
            return self._wrong
        if self._seen != wanted:
            return f"there are {_shown(self._seen)}, and must be {_shown(wanted)}"
        if self._counts != keys:
            return f"counts are {dict(self._counts)}, not {dict(keys)}"
        state = sorted(entry for held in self._state.values() for entry in held.items())
        if state != sorted(keys.items()):
            return f"the state topic holds {state}, not {dict(keys)}"
        return None


class Equal(Expectation):
    """The results are those of a function of the input, whatever their order."""

    def __init__(self, expected: Callable[[Lines], Iterator[str]]) -> None:
        self._expected = expected
        self._found: Counter[str] = Counter()

    def take(self, topic: str, message: StoredMessage) -> None:
        if topic == RESULTS:
            self._found[message.body.decode()] += 1

    def disagreement(self, lines: Lines) -> str | None:
        wanted = Counter(self._expected(lines))
        if self._found == wanted:
            return None
        return f"there are {_shown(self._found - wanted)} too many, {_shown(wanted - self._found)} lack"


class Collected(Expectation):
    """Each key's list is in the order of arrival, and holds what the one before held."""

    def __init__(self) -> None:
        self._lists: dict[str, list[str]] = {}
        self._wrong: str | None = None

    def take(self, topic: str, message: StoredMessage) -> None:
        if topic == RESULTS:
            key, *found = message.body.decode().split()
            if not Counter(self._lists.get(key, [])) < Counter(found):
                self._wrong = f"{found} of {key} comes after {self._lists[key]}"
            self._lists[key] = found

    def disagreement(self, lines: Lines) -> str | None:
        wanted = defaultdict(list)
        every = [line for topic in lines.values() for queue in topic for line in queue]
        for line in sorted(every, key=lambda line: (line.position, line.broker)):
            if line.text[0] != DROPPED:
                wanted[line.text[0]].append(line.text)
        if self._wrong is None and self._lists != wanted:
            return f"there are {self._lists}, and must be {dict(wanted)}"
        return self._wrong


@dataclass(frozen=True)
class SimulatedJob:
    """A topology, what it reads, and what must come of it."""

    name: str
    topology: Topology
    expects: Callable[[], Expectation]
    inputs: tuple[str, ...] = (LINES,)
    #: How often Spark loses what its tasks have made.
    losses: float = 0.03
    #: How many partitions it may begin with.
    partitions: tuple[int, ...] = (1, 2)


def _all(queues: Sequence[Sequence[Line]]) -> Iterator[str]:
    for queue in queues:
        for line in queue:
            yield line.text


def _shown(lines: Counter[str]) -> list[str]:
    return sorted(lines.elements())


def _number(line: str) -> int:
    return int(line.split("-")[1])


def _moment(line: str) -> datetime:
    return EPOCH + _number(line) * _STEP


def _source(builder: StreamBuilder, topic: str) -> Any:
    lines = builder.source(
        topic, serdes.string, timestamp=_moment, allowed_lateness=timedelta(minutes=10)
    )
    return lines.where(lambda line: line[0] != DROPPED or line == LAST).key_by(lambda line: line[0])


def counted() -> Topology:
    """Hand each line on, and count by key."""
    builder = StreamBuilder(JOB)
    lines = builder.source(LINES, serdes.string).where(lambda line: line[0] != DROPPED)
    lines.sink(RESULTS, serdes.string)
    keyed = lines.key_by(lambda line: line[0])
    keyed.count(name="count", emit="each").to_stream().sink(COUNTS, serdes.json)
    return builder.build()


def windowed() -> Topology:
    """Count by key and window of event time, once each window is over."""
    builder = StreamBuilder(JOB)
    windows = _source(builder, LINES).window(tumbling(_WINDOW * _STEP))
    closed = windows.count(name="count", emit="close").to_stream(with_window=True)
    texts = closed.map_values(lambda key, one: f"{key} {one.start:%S.%f} {one.value}")
    texts.where(lambda key, _: key != DROPPED).sink(RESULTS, serdes.string)
    return builder.build()


def _windows(lines: Lines) -> Iterator[str]:
    found: Counter[tuple[str, int]] = Counter()
    for line in _all(lines[LINES]):
        if line[0] != DROPPED:
            found[line[0], _number(line) // _WINDOW] += 1
    for (key, window), count in found.items():
        start = EPOCH + window * _WINDOW * _STEP
        yield f"{key} {start:%S.%f} {count}"


def joined() -> Topology:
    """Pair lines of two topics with one key that are near to each other."""
    builder = StreamBuilder(JOB)
    left, right = _source(builder, LINES), _source(builder, OTHERS)
    pairs = left.join(right, lambda one, other: f"{one} {other}", within=_WITHIN * _STEP)
    pairs.sink(RESULTS, serdes.string)
    return builder.build()


def _pairs(lines: Lines) -> Iterator[str]:
    for one in _all(lines[LINES]):
        for other in _all(lines[OTHERS]):
            near = abs(_number(one) - _number(other)) <= _WITHIN
            if one[0] == other[0] and (one[0] != DROPPED or one == LAST == other) and near:
                yield f"{one} {other}"


def passed_through() -> Topology:
    """Count by key behind a topic that the job writes for itself."""
    builder = StreamBuilder(JOB)
    counts = _source(builder, LINES).through(queues=QUEUES).count(name="count", emit="each")
    texts = counts.to_stream().map_values(str).where(lambda key, _: key != DROPPED)
    texts.map_values(lambda key, text: f"{key} {text}").sink(RESULTS, serdes.string)
    return builder.build()


def _running_counts(lines: Lines) -> Iterator[str]:
    found: dict[str, int] = defaultdict(int)
    for line in _all(lines[LINES]):
        if line[0] != DROPPED:
            found[line[0]] += 1
            yield f"{line[0]} {found[line[0]]}"


def collected() -> Topology:
    """Keep the lines of two topics by key, in the order in which they came."""
    builder = StreamBuilder(JOB)
    lines = _lines(builder, LINES).merge(_lines(builder, OTHERS))
    lists = lines.key_by(lambda line: line[0]).collect(name="collect").to_stream()
    texts = lists.map_values(lambda key, found: " ".join([key, *found]))
    texts.sink(RESULTS, serdes.string)
    return builder.build()


def _lines(builder: StreamBuilder, topic: str) -> Any:
    return builder.source(topic, serdes.string).where(lambda line: line[0] != DROPPED)


def tossed() -> Topology:
    """Hand lines on behind a key that is thrown for anew by each attempt."""
    builder = StreamBuilder(JOB)
    keyed = _lines(builder, LINES).key_by(lambda _: random.SystemRandom().choice(KEYS))
    latest = keyed.reduce(lambda _, line: line, name="latest", emit="each")
    latest.to_stream().map_values(lambda _, line: line).sink(RESULTS, serdes.string)
    return builder.build()


def _each(lines: Lines) -> Iterator[str]:
    return (line for line in _all(lines[LINES]) if line[0] != DROPPED)


def _counts_and_ticks(lines: Lines) -> Iterator[str]:
    yield from _running_counts(lines)
    yield from (f"{TICK} {number} {number}" for number in range(TICKS))


def _looked_through(topology: Topology) -> Topology:
    """Have a topology work out once what it keeps: later seeds would find it, and the first not."""
    for name, value in vars(Topology).items():
        if isinstance(value, cached_property):
            getattr(topology, name)
    for name, value in vars(type(topology.plan)).items():
        if isinstance(value, cached_property):
            getattr(topology.plan, name)
    return topology


JOBS = (
    SimulatedJob("counted", _looked_through(counted()), Counted),
    SimulatedJob("windowed", _looked_through(windowed()), lambda: Equal(_windows)),
    SimulatedJob("joined", _looked_through(joined()), lambda: Equal(_pairs), (LINES, OTHERS)),
    SimulatedJob("through", _looked_through(passed_through()), lambda: Equal(_running_counts)),
    SimulatedJob("collected", _looked_through(collected()), Collected, (LINES, OTHERS)),
    SimulatedJob(
        "tossed", _looked_through(tossed()), lambda: Equal(_each), losses=0.4, partitions=(2,)
    ),
    SimulatedJob(
        "bolts", _looked_through(bolts(JOB, LINES, RESULTS)), lambda: Equal(_counts_and_ticks)
    ),
)
