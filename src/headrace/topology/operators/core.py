"""Operators: the nodes of a topology, as immutable data.

An operator says what to do; the processor that does it lives in :mod:`headrace.runtime`, found
through one table.  Names are stable: given by the user or derived from kind and place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.serdes import Deserializer, Serde, Serializer
    from headrace.topology.aggregations import Aggregation
    from headrace.topology.errors import ErrorPolicy


# User functions are typed where the DSL takes them; a graph node holds them as they come.
Function = Callable[..., Any]

Emit = Literal["update", "each"]

Start = Literal["first", "latest"] | datetime | Mapping[str | int, int]
"""At the first message of each queue, after the latest, at the first one stored at a time or
later, or at offsets by queue number or by queue name (queues that are left out: at the first)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The line of the user's program that made an operator."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RecordFunction:
    """A function of a record's value, or of its key and value."""

    function: Function
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node of the graph."""

    #: Shown by ``describe()``.
    label: ClassVar[str] = "operator"
    #: The key of a record that it emits may differ from the key of the record that it took.
    changes_key: ClassVar[bool] = False
    #: It keeps state by key, so all records of a key must come to one partition.
    stateful: ClassVar[bool] = False
    #: It acts on the progress of event time, so watermarks must reach it.
    timed: ClassVar[bool] = False
    #: It sets the times of records, and so begins watermarks of its own.
    keeps_time: ClassVar[bool] = False
    #: Records come to it through a shuffle, even if those of each key are together already.
    moves: ClassVar[bool] = False
    #: It takes old values of updates back: see :mod:`headrace.topology.stages`.
    takes_back: ClassVar[bool] = False
    #: Without state, it does with an old value what it did when the value was new.
    carries_back: ClassVar[bool] = True
    #: It goes by the time of each record, so it cannot take updates.
    refuses_updates: ClassVar[bool] = False
    #: With state: parents whose updates make it emit updates, of which it keeps no old ones.
    update_ports: ClassVar[tuple[int, ...]] = ()
    #: It uses the messages' own properties.
    reads_headers: ClassVar[bool] = False
    #: Fields besides serdes and windows that must not change, so that its state still fits.
    fixed: ClassVar[tuple[str, ...]] = ()

    name: str
    #: Names of the operators that feed this one, in order.
    parents: tuple[str, ...]
    #: Which of its parent's outputs it takes; every operator has one without a name.
    output: str = ""
    #: What to do with a record that its function cannot handle.
    on_error: ErrorPolicy = "fail"
    #: The line that made it; comparisons ignore it, because it changes nothing in the topology.
    origin: Origin | None = field(default=None, compare=False)

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition after it, wherever they were before."""
        return self.stateful

    @property
    def moved(self) -> tuple[str, ...]:
        """Parents whose records always come to it through a shuffle."""
        return self.parents if self.moves else ()

    @property
    def updates(self) -> bool:
        """Whether a result replaces the previous one of its key."""
        return False

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        raise NotImplementedError(f"operator {self.name} takes nothing through a shuffle: {port}")

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return []

    @property
    def delay(self) -> int:
        """How much older than its watermark its results may be, ms."""
        return 0

    @property
    def time_step(self) -> int:
        """Grid of the times at which it acts, ms; 0 for none of its own."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Operator):
    """Reads topics, and sets the time of each record."""

    label: ClassVar[str] = "source"
    changes_key: ClassVar[bool] = True
    keeps_time: ClassVar[bool] = True

    #: A name, several names, or a pattern that whole names must match.
    topic: str | tuple[str, ...] | re.Pattern[str]
    deserializer: Deserializer[Any, Any]
    #: ``"message"``: the born time; ``"wall"``: the clock of the batch; else found in the value.
    timestamp: Function | Literal["message", "wall"] = "message"
    #: How far a record may lag behind the newest of its queue before it is late.
    allowed_lateness: timedelta = timedelta(seconds=2)
    #: How long a queue may be silent before the others go on without it; None: for ever.
    idle_timeout: timedelta | None = timedelta(seconds=10)
    #: Records this far ahead of their store time do not advance the watermark; None: see settings.
    max_future: timedelta | None = None
    #: Where a job that has not read these topics begins; None: as its settings say.
    start: Start | None = field(default=None, hash=False)
    #: Whether ``start`` holds for the first start only.
    start_once: bool = True

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it names; a pattern names none."""
        if isinstance(self.topic, str):
            return (self.topic,)
        return self.topic if isinstance(self.topic, tuple) else ()

    @property
    def shown_topics(self) -> tuple[str, ...]:
        """The names of what it reads: its topics, or its pattern between slashes."""
        return (f"/{self.topic.pattern}/",) if isinstance(self.topic, re.Pattern) else self.topics

    def reads(self, topic: str) -> bool:
        """Return whether it reads a topic."""
        if isinstance(self.topic, re.Pattern):
            return self.topic.fullmatch(topic) is not None
        return topic in self.topics

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        facts = [f"reads {', '.join(self.shown_topics)}", f"deserializer {self.deserializer!r}"]
        if self.timestamp != "message":
            facts.append("time by the wall clock" if self.timestamp == "wall" else "time selected")
        return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Operator):
    """Replaces key and value by the pair that ``function(value)`` returns."""

    label: ClassVar[str] = "map"
    changes_key: ClassVar[bool] = True

    function: Function
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Operator):
    """Replaces the value by ``function(value)``."""

    label: ClassVar[str] = "map_values"

    function: Function
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Operator):
    """Makes any number of records: the pairs that ``function(value)`` yields."""

    label: ClassVar[str] = "flat_map"
    changes_key: ClassVar[bool] = True

    function: Callable[..., Iterable[Any]]
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Operator):
    """Makes any number of values by ``function(value)``; the key stays."""

    label: ClassVar[str] = "flat_map_values"

    function: Callable[..., Iterable[Any]]
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Operator):
    """Keeps the records for which ``function(value)`` is true."""

    label: ClassVar[str] = "where"

    function: Function
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Operator):
    """Calls ``function(value)`` for its effect and passes the record on."""

    label: ClassVar[str] = "peek"

    function: Function
    #: The function takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBy(Operator):
    """Sets the key to ``selector(value)``; the next stateful operator runs after a shuffle."""

    label: ClassVar[str] = "key_by"
    changes_key: ClassVar[bool] = True

    selector: Function
    key_serde: Serde[Any]
    #: The selector takes key and value.
    takes_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Operator):
    """Keeps one accumulator per key and emits its result when it changes."""

    label: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    takes_back: ClassVar[bool] = True

    aggregation: Aggregation
    key_serde: Serde[Any]
    emit: Emit = "update"

    @property
    def updates(self) -> bool:
        """Whether a result replaces the previous one of its key."""
        return self.emit == "update"

    @property
    def state_serde(self) -> Serde[Any]:
        """Serde of the accumulators."""
        return self.aggregation.state_serde

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.aggregation.value_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        row = [str(self.aggregation)] if self.aggregation.parts else []
        return [*row, f"emit {self.emit}", f"state {self.state_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStream(Operator):
    """Turns a table of results into a stream of its updates."""

    label: ClassVar[str] = "to_stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Operator):
    """Writes to a topic, or to the one of several that it chooses for each record."""

    label: ClassVar[str] = "sink"

    #: Empty if the topic of each record is chosen.
    topic: str
    serializer: Serializer[Any, Any]
    #: Chooses the topic of a record.
    choose: RecordFunction | None = None
    #: The topics from which it may choose.
    choices: tuple[str, ...] = ()
    #: Returns the message's key; None: the key is that of the record.
    message_key: RecordFunction | None = None
    #: Returns the number of the message's queue; None: the key decides.
    queue_number: RecordFunction | None = None

    @property
    def places(self) -> bool:
        """Whether functions decide where each record goes."""
        return any((self.choose, self.message_key, self.queue_number))

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic that it may write."""
        return self.choices or (self.topic,)

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"writes {' or '.join(self.topics)}", f"serializer {self.serializer!r}"]


# Operators at the edge to outside systems: what the front door of Connect compiles to.
#
# A process of its own runs a connector's task; records come from it and go to it as columns.  The
# operators here hold the picklable address by which a worker reaches that process.


@dataclass(frozen=True, slots=True)
class Taken:
    """The records that an intake returns for one batch.

    The columns of ``records`` are ``topic`` (string), ``queue`` (int32, null where the key
    decides), ``key`` (binary, null for none), ``value`` (binary, null to delete), ``properties``
    (binary, as the wire has them) and ``timestamp`` (int64, ms since 1970).
    """

    records: pa.RecordBatch
    #: How far each partition is read with them: its name, and the connector's own position; None
    #: if the partition is gone.
    positions: Sequence[tuple[str, Any]]


class Intake(Protocol):
    """A place where a worker asks for records of an outside system; pickled with the job."""

    def take(self, epoch: int, batch: int) -> Taken:
        """Return the records of a batch, and the same records whenever it is asked for again.

        A request for the next batch means that the one before is committed; a new epoch means that
        everything after the last committed batch is requested again.
        """


class Outlet(Protocol):
    """A place where a worker hands messages over to an outside system; pickled with the job."""

    def put(self, epoch: int, batch: int, messages: pa.RecordBatch) -> None:
        """Hand messages over, in the order of each queue.

        The columns are ``queue`` (string, ``topic@broker@number``), ``offset`` (int64), ``body``
        and ``properties`` (binary) and ``timestamp`` (int64, ms since 1970).
        """

    def flush(self, epoch: int, batch: int) -> None:
        """Make sure that all of the batch has arrived."""

    def refused(self, epoch: int, batch: int) -> pa.RecordBatch | None:
        """Return what the outside system refused, after the flush, in the columns of an intake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Operator):
    """Takes records from an outside system."""

    label: ClassVar[str] = "feed"
    changes_key: ClassVar[bool] = True

    #: None if whoever runs the batch feeds the records in.
    intake: Intake | None
    #: Generation of the task, which shows the later one of two positions.
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSink(Sink):
    """Writes what comes in the columns of an intake, each record to the topic that it names."""

    label: ClassVar[str] = "feed_sink"

    #: The only topic that records name; empty where they may name any.
    topic: str = ""
    serializer: None = None  # type: ignore[assignment]

    @property
    def topics(self) -> tuple[str, ...]:
        """The only topic that records may name; none where they may name any."""
        return (self.topic,) if self.topic else ()

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"writes {self.topic or 'the topics that records name'}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSource(Source):
    """Reads a share of the queues of some topics, as messages that are not deserialized."""

    label: ClassVar[str] = "message_source"

    deserializer: None = None  # type: ignore[assignment]
    #: Which share of the queues, of how many.
    number: int = 0
    of: int = 1

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        shown = [f"reads {', '.join(self.shown_topics)}"]
        return shown if self.of == 1 else [*shown, f"share {self.number} of {self.of}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Operator):
    """Hands messages over to an outside system, and passes on those that it refused."""

    label: ClassVar[str] = "delivery"

    #: None if whoever runs the batch has taken the messages out.
    outlet: Outlet | None
    #: Generation of the task, which shows the later one of two positions.
    generation: int = 0


# A shuffle through a visible topic: one part of a job writes it, and another one reads it.
#
# What one batch publishes, the next one reads.  It takes two operators: :class:`Through` writes,
# and :class:`ThroughSource`, whose parent it is, reads.  What a record carries besides key, value,
# time and headers travels in properties of its message; watermarks travel in messages of their own,
# marked by :data:`WATERMARK`.

WATERMARK = "HEADRACE_WATERMARK"
"""Property of a message that is a watermark, not a record: its event time, ms since 1970."""

SENDER = "HEADRACE_JOB"
"""Property of a watermark: the job whose event time it is."""

TIME = "HEADRACE_TIME"
"""Property of a record: its time, ms since 1970; the messages of a batch share one born time."""

LATE_BELOW = "HEADRACE_LATE_BELOW"
"""Property of a record that was late at its source: the watermark that it came after."""

RETRACTS = "HEADRACE_RETRACTS"
"""Property of a record that takes an earlier one back."""

NO_VALUE = "HEADRACE_NO_VALUE"
"""Property of a record whose value is None, since an empty body may be a value."""

THROUGH_PROPERTIES = frozenset({WATERMARK, SENDER, TIME, LATE_BELOW, RETRACTS, NO_VALUE})
"""All of these properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Through(Sink):
    """Writes what the next batch reads."""

    label: ClassVar[str] = "through"

    value_serde: Serde[Any]
    #: Whether records have keys, which decide their queues.
    keyed: bool = True
    #: How many queues the topic gets if the job makes it.
    queues: int = 8

    @property
    def gathers(self) -> bool:
        """Whether the records of a key come together first, so that they are written in order."""
        return self.keyed

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"writes {self.topic}", f"serde {self.value_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughSource(Source):
    """Reads what a :class:`Through`, its parent, has written in an earlier batch."""

    label: ClassVar[str] = "through_source"

    #: Whether records have keys.
    keyed: bool = True

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"reads {', '.join(self.topics)}"]


def is_loop(operator: Operator) -> bool:
    """Return whether an operator's input was published in an earlier batch of the same job."""
    return isinstance(operator, ThroughSource)


# Operators that give records their times.


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectTimestamp(Operator):
    """Sets the time to what ``function(value)`` returns, and begins watermarks of its own."""

    label: ClassVar[str] = "select_timestamp"
    keeps_time: ClassVar[bool] = True

    function: Function
    #: How far a record may lag behind the newest of its queue, or partition, before it is late.
    allowed_lateness: timedelta = timedelta(seconds=2)
    #: How long a queue, or partition, may be silent before the others go on; None: for ever.
    idle_timeout: timedelta | None = timedelta(seconds=10)
    #: Records this far ahead of the wall clock do not advance the watermark; None: see settings.
    max_future: timedelta | None = None
