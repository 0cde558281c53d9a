"""Topics of the test driver: the ways in, and what sinks wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.keys import EXACT_KEY, KEYS, key_from_properties, properties_of_key
from headrace.protocol.properties import decode_properties, encode_properties
from headrace.runtime.low_level import cells
from headrace.topology.operators.core import THROUGH_PROPERTIES

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.commit.transactions import QueueMessages
    from headrace.serdes import Deserializer, Serde


K = TypeVar("K")
_OWN = {KEYS, EXACT_KEY, *THROUGH_PROPERTIES}
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TestRecord(Generic[K, V]):
    """A record that a sink wrote."""

    key: K
    value: V
    time: datetime
    headers: Mapping[str, str] = field(default_factory=dict)

    __test__ = False


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a test sent."""

    topic: str
    #: Number of its queue.
    queue: int
    body: bytes
    properties: bytes
    #: ms since 1970.
    time: int

    @classmethod
    def unpack(cls, messages: QueueMessages, topic: str, queue: int) -> list[Sent]:
        """Return staged messages of one queue one by one."""
        columns = (
            messages.bodies.to_pylist(),
            messages.properties.to_pylist(),
            messages.times.tolist(),
        )
        return [cls(topic, queue, *message) for message in zip(*columns, strict=True)]


@dataclass(frozen=True, slots=True)
class Written:
    """A message that a sink wrote."""

    body: bytes
    properties: dict[str, str]
    #: ms since 1970.
    time: int

    @classmethod
    def unpack(cls, messages: QueueMessages) -> list[Written]:
        """Return staged messages one by one."""
        columns = (
            messages.bodies.to_pylist(),
            messages.properties.to_pylist(),
            messages.times.tolist(),
        )
        return [
            cls(body, decode_properties(properties), time)
            for body, properties, time in zip(*columns, strict=True)
        ]

    def read(self, deserializer: Deserializer[Any, V]) -> TestRecord[Any, V]:
        """Make a record of it."""
        found = deserializer.deserialize(self.body, self.properties)
        key = key_from_properties(self.properties) if found.key is None else found.key
        headers = {k: v for k, v in self.properties.items() if k not in _OWN}
        return TestRecord(key, found.value, _datetime(self.time), headers)


def records_of(chunk: Chunk) -> list[TestRecord[Any, Any]]:
    """Return the records of a chunk one by one."""
    headers = chunk.headers or [None] * len(chunk)
    columns = (chunk.key_list(), chunk.values, chunk.times.tolist(), headers)
    return [
        TestRecord(key, value, _datetime(time), more or {})
        for key, value, time, more in zip(*columns, strict=True)
    ]


class TestInput(Generic[V]):
    """The way into one source topic.

    Parameters
    ----------
    take
        Takes each message that is sent.
    now
        Tells the time of records that are sent without one.
    """

    __test__ = False

    def __init__(
        self,
        topic: str,
        serde: Serde[V],
        queue: int,
        take: Callable[[list[Sent]], None],
        now: Callable[[], datetime],
    ) -> None:
        self._topic = topic
        self._serde = serde
        self._queue = queue
        self._take = take
        self._now = now

    def send(
        self,
        value: V,
        *,
        key: object = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one record; without a time it has the clock's."""
        self.send_bytes(self._serde.serialize(value), key=key, time=time, headers=headers)

    def pipe(
        self,
        values: Iterable[V | TestRecord[Any, V]],
        *,
        start: datetime | None = None,
        step: timedelta = timedelta(0),
    ) -> None:
        """Send many records one after the other, as that many calls of :meth:`send`.

        Each is a batch of its own, as if the job had kept up with them; inside
        :meth:`TopologyTestDriver.batch` all are of that one batch.  A value has no key, and the time ``start`` moved on by ``step`` for each; a
        :class:`TestRecord` has its own key, time and headers.
        """
        for number, value in enumerate(values):
            if isinstance(value, TestRecord):
                record: TestRecord[Any, V] = value
                self.send(record.value, key=record.key, time=record.time, headers=record.headers)
            else:
                self.send(value, time=(start or self._now()) + number * step)

    def send_bytes(
        self,
        body: bytes,
        *,
        key: object = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one message with any body, also one that cannot be read."""
        properties = encode_properties({**properties_of_key(key), **(headers or {})})
        stamp = milliseconds(self._now() if time is None else time)
        self._take([Sent(self._topic, self._queue, body, properties, stamp)])


class TestOutput(Generic[V]):
    """What was written to one place and not yet read.

    Parameters
    ----------
    name
        Names the place in errors.
    waiting
        What is there and was not read: taken from as it is read.
    make
        Makes a record of each.
    """

    __test__ = False

    def __init__(
        self, name: str, waiting: list[Any], make: Callable[[Any], TestRecord[Any, V]]
    ) -> None:
        self._name = name
        self._waiting = waiting
        self._make = make

    def read(self) -> TestRecord[Any, V]:
        """Take the oldest record.

        Raises
        ------
        IndexError
            There is none.
        """
        if not self._waiting:
            message = f"{self._name} has nothing that was not read"
            raise IndexError(message)
        return self._make(self._waiting.pop(0))

    def __len__(self) -> int:
        return len(self._waiting)

    def read_all(self) -> list[TestRecord[Any, V]]:
        """Take all records, oldest first."""
        records = list(map(self._make, self._waiting))
        self._waiting.clear()
        return records

    def is_empty(self) -> bool:
        """Return whether everything was read."""
        return not self._waiting


def milliseconds(moment: datetime) -> int:
    """Return a time in ms since 1970.

    Raises
    ------
    ValueError
        The time has no time zone.
    """
    if moment.tzinfo is None:
        message = f"{moment!r} has no time zone: give it one, e.g. .replace(tzinfo=UTC)"
        raise ValueError(message)
    return cells.milliseconds(moment)


def _datetime(time: int) -> datetime:
    return datetime.fromtimestamp(time / 1000, UTC)
