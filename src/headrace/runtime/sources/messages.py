"""Messages into records: deserializers, and what becomes of messages that they cannot read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import DeserializationError, HeadraceError
from headrace.keys import EXACT_KEY, KEYS
from headrace.protocol import properties as names
from headrace.protocol.columns import MessageColumns
from headrace.protocol.journal_tags import TAG
from headrace.protocol.properties import decode_properties
from headrace.runtime.batches.cutting import BATCH
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.event_time.silence import milliseconds
from headrace.runtime.low_level import cells
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code import Original, UserFunction, may_pass
from headrace.topology.operators.core import (
    THROUGH_PROPERTIES,
    WATERMARK,
    Operator,
    SelectTimestamp,
    Source,
)

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import SourceWatermarks


# Event times that the user selects, as milliseconds since 1970, and the clocks behind them.

_RANGE = 1 << 55


def checked_time(time: object, otherwise: int) -> int:
    """Turn what a selector returned into ms since 1970; None leaves the record's time.

    Raises
    ------
    TypeError
        It is neither an aware datetime nor a whole number.
    ValueError
        It is further from 1970 than any clock.

    Examples
    --------
    >>> from datetime import UTC
    >>> checked_time(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), 0), checked_time(5, 0)
    (2000, 5)
    >>> checked_time(None, 7)
    7
    """
    if time is None:
        return otherwise
    if isinstance(time, datetime):
        if time.tzinfo is None:
            message = f"{time!r} has no time zone: give it one, e.g. .replace(tzinfo=UTC)"
            raise TypeError(message)
        return cells.milliseconds(time)
    if not isinstance(time, int) or isinstance(time, bool):
        message = f"a time is a datetime, or an int of ms since 1970, not {time!r:.100}"
        raise TypeError(message)
    if abs(time) >= _RANGE:
        message = f"{time} is no time in ms since 1970"
        raise ValueError(message)
    return time


def checked_times(times: Sequence[Any], otherwise: Int64s) -> Int64s:
    """Turn what a selector returned for each record into ms since 1970.

    Raises
    ------
    TypeError, ValueError
        One of them is not a time; :func:`checked_time` tells which.
    """
    if all(type(time) is int for time in times) and all(-_RANGE < time < _RANGE for time in times):
        return np.array(times, np.int64)
    pairs = zip(times, otherwise.tolist(), strict=True)
    return np.array([checked_time(time, other) for time, other in pairs], np.int64)


def observe(
    context: ProcessorContext,
    clock: SourceWatermarks,
    names: Sequence[str],
    chunk: Chunk,
    newest: Int64s | None,
) -> None:
    """Move a clock by records whose queues have these names, and return how late each may be.

    Records with a time beyond their ``newest`` are counted and move nothing.
    """
    assert chunk.queues is not None, "the records of a clock are numbered by queue"
    if newest is not None:
        context.counters["future"] += int(np.count_nonzero(chunk.times > newest))
    found, chunk.late_below = clock.observe(names, chunk.queues, chunk.times, chunk.marks, newest)
    context.tell_time(found, clock.current)


def newest_times(
    operator: Source | SelectTimestamp, context: ProcessorContext, stored: Int64s
) -> Int64s | None:
    """Return the highest time at which each record moves watermarks; None where all do."""
    own = operator.max_future
    ahead = context.max_future if own is None else milliseconds(own)
    return None if ahead is None else stored + ahead


class SelectTimestampProcessor(Processor[SelectTimestamp]):
    """Sets other times of records; its clock is per source queue, behind a shuffle per partition."""

    def __init__(self, operator: SelectTimestamp, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.function = UserFunction(operator, operator.function, context.locator)
        self._clock = context.event_clock(operator, operator.allowed_lateness)

    def process(self, chunk: Chunk) -> Chunk:
        """Set times, and note how late records are by them."""
        chunk, selected = self.function.each(chunk, chunk.values)
        chunk, times = self._checked(chunk, selected)
        chunk = replace(chunk, times=times, late_below=None)
        if self._clock is not None:
            self._observe(self._clock, chunk)
        return chunk

    def _observe(self, clock: SourceWatermarks, chunk: Chunk) -> None:
        queues, names = chunk.queues, self.context.source_queues
        if queues is None:
            chunk.queues = np.zeros(len(chunk), np.intp)
            names = [str(self.context.partition)]
        now = np.full(len(chunk), self.context.wall_clock, np.int64)
        newest = newest_times(self.operator, self.context, now)
        observe(self.context, clock, names, chunk, newest)
        chunk.queues = queues

    def _checked(self, chunk: Chunk, selected: list[Any]) -> tuple[Chunk, Int64s]:
        try:
            return chunk, checked_times(selected, chunk.times)
        except (TypeError, ValueError):
            # Some are not times: each of them follows the operator's policy.
            before = chunk.times.tolist()
            chunk, times = self.function.each(chunk, selected, before, step=checked_time)
            return chunk, np.array(times, np.int64)


#: Properties that belong to the protocol or to the key, not to the user.
_RESERVED = frozenset(names.NAMES | {KEYS, EXACT_KEY, BATCH, TAG} | THROUGH_PROPERTIES)
#: Of those, all but what a message keeps wherever it goes.
NOT_CARRIED = _RESERVED - {names.TAGS, names.SHARDING_KEY}
_SHOWN_BYTES = 80
_NEEDLE = WATERMARK.encode()


class TaskPort(Protocol):
    """What a source asks of its task."""

    @property
    def wall_clock(self) -> int:
        """Wall clock of the batch, ms since 1970."""

    def divert_message(self, operator: Operator, original: Original, error: Exception) -> None:
        """Follow an operator's policy with a message of which no record could be made."""


class SourceReader:
    """Reads the records of one source out of messages.

    Parameters
    ----------
    source
        Deserializer and error policy.
    task
        Takes messages that cannot be read, where the policy is to go on.
    forwards_headers
        Whether some sink passes the messages' own properties on.
    """

    #: Whether what stands behind must know each record's queue.
    names_queues: ClassVar[bool] = False
    #: Whether it must get the records of all queues in the order of their marks.
    in_order: ClassVar[bool] = True

    def __init__(self, source: Source, task: TaskPort, *, forwards_headers: bool) -> None:
        self.source = source
        self._task = task
        self._forwards_headers = forwards_headers

    def read(self, topic: str, columns: MessageColumns) -> Chunk:
        """Deserialize messages; those that cannot be read follow the source's policy.

        Raises
        ------
        DeserializationError
            The policy is to fail.
        """
        if columns.packed.any():
            return self._read_singly(topic, columns)
        deserializer = self.source.deserializer
        try:
            keys, values = deserializer.deserialize_many(columns.body, columns.property)
            times = self._times(values, columns)
        except Exception as error:
            if may_pass(error):
                raise
            # Some message is bad: find out which, one by one.
            return self._read_singly(topic, columns)
        return Chunk(keys, values, times, columns.position, self._headers(columns))

    def _times(self, values: list[Any], columns: MessageColumns) -> Int64s:
        """Return when records happened."""
        timestamp = self.source.timestamp
        if timestamp == "message":
            return columns.born
        if timestamp == "wall":
            return np.full(len(columns), self._task.wall_clock, np.int64)
        return checked_times(list(map(timestamp, values)), columns.born)

    def _headers(self, columns: MessageColumns) -> list[dict[str, str] | None] | None:
        if not self._forwards_headers:
            return None
        headers = [user_properties(raw) for raw in columns.properties.to_pylist()]
        return headers if any(headers) else None

    def _read_singly(self, topic: str, columns: MessageColumns) -> Chunk:
        good: list[int] = []
        records: list[Any] = []
        times: list[np.int64] = []
        raws = columns.properties.to_pylist()
        for index, raw in enumerate(raws):
            try:
                body, properties = columns.readable_body(index), decode_properties(raw)
                record = self.source.deserializer.deserialize(body, properties)
                times.append(self._times([record.value], columns.pick(np.array([index])))[0])
                records.append(record)
                good.append(index)
            except Exception as error:
                if may_pass(error):
                    raise
                if self.source.on_error == "fail":
                    raise self._unreadable(topic, columns, index, error) from error
                original = original_at(topic, columns, index)
                self._task.divert_message(self.source, original, error)
        kept = columns.pick(np.array(good, np.intp))
        return Chunk(
            [record.key for record in records],
            [record.value for record in records],
            np.array(times, np.int64),
            kept.position,
            self._headers(kept),
        )

    def _unreadable(
        self, topic: str, columns: MessageColumns, index: int, error: Exception
    ) -> DeserializationError:
        body = columns.body[index].as_py()
        shown = repr(body[:_SHOWN_BYTES]) + ("..." if len(body) > _SHOWN_BYTES else "")
        reason, advice = str(error), ""
        if isinstance(error, HeadraceError):
            reason, advice = error.message, f"{error.hint}; " if error.hint else ""
        return DeserializationError(
            f"source '{self.source.name}' cannot read the message at topic '{topic}',"
            f" queue {columns.queue_id[index]}, offset {columns.queue_offset[index]}"
            f" ({len(body)} bytes: {shown}): {type(error).__name__}: {reason}",
            hint=f"{advice}the source was made at {self.source.origin}; give it another deserializer, or"
            ' on_error="skip" or on_error="topic:NAME" to go on without such messages',
        )


def without_watermarks(columns: MessageColumns) -> MessageColumns:
    """Leave out the messages that carry watermarks through a topic."""
    data = columns.properties.buffers()[2]
    if data is None or not len(columns) or _NEEDLE not in data.to_pybytes():
        return columns
    records = np.flatnonzero(columns.property(WATERMARK).is_null().to_numpy(zero_copy_only=False))
    return columns if len(records) == len(columns) else columns.pick(records)


def user_properties(raw: bytes) -> dict[str, str] | None:
    """Return the properties of a message that are the user's own; None for none."""
    if not raw:
        return None
    found = decode_properties(raw)
    return {name: value for name, value in found.items() if name not in _RESERVED} or None


def carried_properties(raw: bytes) -> dict[str, str] | None:
    r"""Return the properties that go along with a message beside its key; None for none.

    They are the user's own, and the tag and the sharding key, which producers set, too.

    >>> carried_properties(b"TAGS\x01red\x02WAIT\x01true\x02colour\x01red\x02")
    {'TAGS': 'red', 'colour': 'red'}
    """
    if not raw:
        return None
    found = decode_properties(raw)
    return {name: found[name] for name in found if name not in NOT_CARRIED} or None


def original_at(topic: str, columns: MessageColumns, index: int) -> Original:
    """Return one message, by its index."""
    return Original(
        topic,
        int(columns.queue_id[index]),
        int(columns.queue_offset[index]),
        columns.body[index].as_py(),
        columns.properties[index].as_py(),
        int(columns.born[index]),
    )


def ranged(columns: MessageColumns, begin: int, end: int) -> MessageColumns:
    """Keep messages with queue offsets from ``begin`` up to ``end``, ``end`` left out."""
    first, last = np.searchsorted(columns.queue_offset, [begin, end])
    return columns.slice(int(first), int(last))


def joined(
    parts: list[MessageColumns], *, in_order: bool = True
) -> tuple[MessageColumns, npt.NDArray[np.intp]]:
    """Join messages, in log order or part by part; return them and the part of each."""
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    whole = MessageColumns.concat(parts)
    if not in_order or bool(np.all(whole.position[:-1] <= whole.position[1:])):
        return whole, numbers
    order = np.argsort(whole.position, kind="stable")
    return whole.pick(order), numbers[order]
