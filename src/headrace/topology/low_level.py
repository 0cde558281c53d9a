"""The low level: processors that users write, and the state and timers that they declare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from headrace.serdes import Serde, plain

if TYPE_CHECKING:
    import pyarrow as pa


K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")

_SECOND = timedelta(seconds=1)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """An immutable record, as a processor takes and forwards it.

    Examples
    --------
    >>> from datetime import UTC
    >>> record = Record("sensor", 21.5, datetime(2025, 1, 1, tzinfo=UTC))
    >>> record.with_value(22.0).value, record.value
    (22.0, 21.5)
    """

    key: K
    value: V
    #: Its event time.
    time: datetime
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)

    def with_key(self, key: K2) -> Record[K2, V]:
        """Return the same record under another key."""
        return Record(key, self.value, self.time, self.headers)

    def with_value(self, value: V2) -> Record[K, V2]:
        """Return the same record with another value."""
        return Record(self.key, value, self.time, self.headers)

    def with_time(self, time: datetime) -> Record[K, V]:
        """Return the same record at another time."""
        return replace(self, time=time)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Declares one piece of state, kept for each key."""

    name: str
    kind: Literal["value", "map", "list", "window"]
    serde: Serde[Any]
    #: How far event time may go past the record that last wrote an entry before the entry expires.
    ttl: timedelta | None = None

    def __str__(self) -> str:
        kept = "" if self.ttl is None else f" for {self.ttl}"
        return f"{self.kind} {self.name} ({self.serde!r}){kept}"


@dataclass(frozen=True, slots=True)
class TimerSpec:
    """Declares a timer, set for each key."""

    name: str
    clock: Literal["event", "wall"]
    #: A timer of event time fires at the next multiple of this.
    step: timedelta = _SECOND

    def __str__(self) -> str:
        return f"{self.clock} timer {self.name}"


def value_state(name: str, serde: Serde[Any] = plain, *, ttl: timedelta | None = None) -> StateSpec:
    """Declare one value per key."""
    return StateSpec(name, "value", serde, ttl)


def map_state(name: str, serde: Serde[Any] = plain, *, ttl: timedelta | None = None) -> StateSpec:
    """Declare a map per key; its own keys are plain data, and the serde writes its values."""
    return StateSpec(name, "map", serde, ttl)


def list_state(name: str, serde: Serde[Any] = plain, *, ttl: timedelta | None = None) -> StateSpec:
    """Declare a list per key, in the order of appending."""
    return StateSpec(name, "list", serde, ttl)


def window_state(
    name: str, serde: Serde[Any] = plain, *, ttl: timedelta | None = None
) -> StateSpec:
    """Declare values by time per key, in the order of their times."""
    return StateSpec(name, "window", serde, ttl)


def event_timer(name: str, *, step: timedelta = _SECOND) -> TimerSpec:
    """Declare a timer that fires when event time reaches its time.

    A smaller ``step`` is more exact and costs more, because watermarks are sent once per step.
    """
    return TimerSpec(name, "event", step)


def wall_timer(name: str) -> TimerSpec:
    """Declare a timer that fires by the wall clock, in a batch of its own if necessary."""
    return TimerSpec(name, "wall")


class ValueState(Protocol[V]):
    """The value of the current key."""

    def get(self) -> V | None:
        """Return the value, or None if there is none."""

    def put(self, value: V) -> None:
        """Set the value."""

    def delete(self) -> None:
        """Delete the value."""


class MapState(Protocol[K, V]):
    """A map of the current key."""

    def get(self, key: K) -> V | None:
        """Return the value of one of its keys, or None if there is none."""

    def put(self, key: K, value: V) -> None:
        """Set one of its values."""

    def delete(self, key: K) -> None:
        """Delete one of its keys."""

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values."""

    def clear(self) -> None:
        """Delete all keys."""


class ListState(Protocol[V]):
    """A list of the current key."""

    def append(self, value: V) -> None:
        """Add a value at the end."""

    def __iter__(self) -> Iterator[V]:
        """Return the values in the order of appending."""

    def clear(self) -> None:
        """Delete all values."""


class WindowState(Protocol[V]):
    """Values of the current key, by time."""

    def get(self, time: datetime) -> V | None:
        """Return the value of a time, or None if there is none."""

    def put(self, time: datetime, value: V) -> None:
        """Set the value of a time."""

    def delete(self, time: datetime) -> None:
        """Delete the value of a time."""

    def between(self, start: datetime, stop: datetime) -> Iterator[tuple[datetime, V]]:
        """Return the values from a time to before another, oldest first."""

    def before(self, time: datetime) -> Iterator[tuple[datetime, V]]:
        """Return the values before a time, such as that of a watermark, oldest first."""

    def clear(self) -> None:
        """Delete the values of all times."""


class Timer(Protocol):
    """A timer of the current key; it may be set for several points in time."""

    def set(self, time: datetime) -> None:
        """Make the timer fire at a time, or as soon as possible if the time has passed."""

    def clear(self, time: datetime) -> None:
        """Cancel a time that was set."""


@dataclass(frozen=True, slots=True)
class Fired(Generic[K]):
    """A timer that fires."""

    name: str
    key: K
    #: The time that it was set for.
    time: datetime


class Context(Protocol):
    """A processor's access to its state, its timers, its clocks and its outputs."""

    @property
    def partition(self) -> int:
        """Number of the task."""

    @property
    def event_time(self) -> datetime | None:
        """The event time that has been reached; None until it first advances."""

    @property
    def wall_clock(self) -> datetime:
        """The wall clock of the batch, which stays the same for the whole batch."""

    def value(self, name: str) -> ValueState[Any]:
        """Return a declared value."""

    def map(self, name: str) -> MapState[Any, Any]:
        """Return a declared map."""

    def list(self, name: str) -> ListState[Any]:
        """Return a declared list."""

    def window(self, name: str) -> WindowState[Any]:
        """Return declared values by time."""

    def timer(self, name: str) -> Timer:
        """Return a declared timer."""

    def forward(self, record: Record[Any, Any], child: str = "") -> None:
        """Send a record to the operators that follow, or to the child of that name."""


class Processor(ABC, Generic[K, V, K2, V2]):
    """Handles records one by one, with state and timers; passed to :meth:`Stream.process`.

    State and timers belong to the key of the current record or timer; attributes of the object
    itself are lost after the batch.  The methods run in Spark's workers, and again for a batch that
    is repeated after a failure.

    Examples
    --------
    >>> class Changes(Processor[str, float, str, float]):
    ...     def init(self, context: Context) -> None:
    ...         self.context, self.last = context, context.value("last")
    ...
    ...     def process(self, record: Record[str, float]) -> None:
    ...         if record.value != self.last.get():
    ...             self.last.put(record.value)
    ...             self.context.forward(record)
    """

    def init(self, context: Context) -> None:
        """Prepare the processor; called in each task before its first record or timer."""

    @abstractmethod
    def process(self, record: Record[K, V]) -> None:
        """Handle one record."""

    def fire(self, timer: Fired[K]) -> None:
        """Handle a timer whose time has come."""
        raise NotImplementedError(
            f"{type(self).__name__} sets timer '{timer.name}', but has no fire()"
        )

    def close(self) -> None:
        """Finish; called in each task after its last record or timer, unless the task failed."""


# Committed batches, as functions and writers outside the transaction get them.


@dataclass(frozen=True, slots=True, order=True)
class BatchToken:
    """Names one committed batch of a job: the same records always come with the same token.

    A batch may be handed over more than once.  A writer that stores the token with its output, or
    names a folder after it, can recognize a repeated batch.

    Examples
    --------
    >>> token = BatchToken("orders", 7)
    >>> str(token), token == BatchToken("orders", 7)
    ('orders-7', True)
    """

    job: str
    batch: int

    def __str__(self) -> str:
        return f"{self.job}-{self.batch}"


class BatchRecords(Sequence[Record[K, V]], Generic[K, V]):
    """The records that one sink got in one batch, in the order of its queues.

    Parameters
    ----------
    count
        The number of records.
    records
        Reads them as records; called once, at the first access.
    table
        Reads them as columns.
    """

    def __init__(
        self,
        count: int,
        records: Callable[[], list[Record[Any, Any]]],
        table: Callable[[], pa.Table],
    ) -> None:
        self._count = count
        self._read = records
        self._table = table
        self._records: list[Record[K, V]] | None = None

    def to_arrow(self) -> pa.Table:
        """Return the records as columns: key, value, time, headers, broker, queue, offset.

        If the values have a schema of columns, no Python object is made for any record.
        """
        return self._table()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record[K, V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record[K, V]]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Record[K, V]]:
        return iter(self._all())

    def __repr__(self) -> str:
        return f"<{self._count} records of a batch>"

    def _all(self) -> list[Record[K, V]]:
        if self._records is None:
            self._records = self._read()
        return self._records
