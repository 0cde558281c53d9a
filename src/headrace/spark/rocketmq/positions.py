"""Positions in queues, as the options name them: an edge, offsets, or times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import OffsetExpiredError, SettingsError

LATEST = -1
"""In JSON offsets: the end of the queue."""

EARLIEST = -2
"""In JSON offsets: the first message that the queue still holds."""

Offsets: TypeAlias = dict[MessageQueue, int]
"""The next offset to read, by queue."""

QueueTable: TypeAlias = Mapping[str, Mapping[str, int]]
"""Numbers by topic and the queue's name within it: ``0``, or ``broker-a@0``."""

Strategy: TypeAlias = Literal["error", "latest"]
"""What to do if no message is as late as the time to start at."""


@dataclass(frozen=True, slots=True)
class AtEdge:
    """The first message that a queue holds, or the end after its last."""

    edge: Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every queue; -1 and -2 mean the edges."""

    option: str
    table: QueueTable


@dataclass(frozen=True, slots=True)
class AtTimes:
    """A store time, in ms since 1970, for every queue."""

    option: str
    table: QueueTable


@dataclass(frozen=True, slots=True)
class AtTime:
    """One store time for all queues, in ms since 1970."""

    option: str
    time: int


Position: TypeAlias = AtEdge | AtOffsets | AtTimes | AtTime


def read_offsets(option: str, text: str) -> Position:
    """Parse ``earliest``, ``latest`` or JSON.

    Raises
    ------
    SettingsError
        The text is none of them.

    Examples
    --------
    >>> read_offsets("startingOffsets", "Earliest")
    AtEdge(edge='earliest')
    >>> read_offsets("startingOffsets", '{"lines": {"0": 5, "1": -1}}').table
    {'lines': {'0': 5, '1': -1}}
    """
    word = text.strip().lower()
    if word == "earliest":
        return AtEdge("earliest")
    if word == "latest":
        return AtEdge("latest")
    table = _table(option, text, EARLIEST)
    if option.startswith("ending") and EARLIEST in _numbers(table):
        raise _wrong(option, text, "nothing comes before -2 (earliest)")
    return AtOffsets(option, table)


def read_queue_numbers(option: str, text: str) -> Position:
    """Parse one time in ms since 1970, or times as JSON by topic and queue.

    Raises
    ------
    SettingsError
        The text is neither.
    """
    if not option.endswith("ByTimestamp"):
        if not text.strip().isdecimal():
            raise _wrong(option, text, "write a time in milliseconds since 1970")
        return AtTime(option, int(text))
    return AtTimes(option, _table(option, text, 0))


def read_queue_lists(option: str, text: str) -> QueueTable:
    """Parse JSON with the queues of each topic.

    Raises
    ------
    SettingsError
        The text is not such JSON.

    Examples
    --------
    >>> read_queue_lists("assign", '{"lines": [0, "broker-a@1"]}')
    {'lines': {'0': 0, 'broker-a@1': 0}}
    """
    example = '{"lines": [0, 1]}'
    topics = _json_object(option, text, example)
    table: dict[str, dict[str, int]] = {}
    for topic, queues in topics.items():
        right = isinstance(queues, list) and queues and all(_is_queue(one) for one in queues)
        if not right:
            raise _wrong(option, text, f"list the queues of '{topic}': {example}")
        table[topic] = {str(one): 0 for one in queues}
    return table


def _is_queue(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _table(option: str, text: str, least: int) -> QueueTable:
    example = '{"lines": {"0": 23, "1": 5}}'
    topics = _json_object(option, text, example)
    for topic, queues in topics.items():
        if not isinstance(queues, dict):
            raise _wrong(option, text, f"give a number for each queue of '{topic}': {example}")
        for queue, number in queues.items():
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not whole or number < least:
                raise _wrong(
                    option,
                    text,
                    f"queue {queue} of '{topic}' has {number!r}: write a whole number, at least"
                    f" {least}",
                )
    return topics


def _numbers(table: QueueTable) -> set[int]:
    return {number for queues in table.values() for number in queues.values()}


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        words = "earliest, latest, or " if option.endswith("Offsets") else ""
        raise _wrong(option, text, f"write {words}JSON such as {example} ({error})") from None
    if not isinstance(parsed, dict) or not parsed:
        raise _wrong(option, text, f"write a JSON object such as {example}")
    return parsed


def _wrong(option: str, text: str, hint: str) -> SettingsError:
    return SettingsError(f"option '{option}' is {text!r}, which cannot work", hint=hint)


def offsets_to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the form of ``startingOffsets``, in a fixed order.

    Examples
    --------
    >>> offsets_to_json({MessageQueue("lines", "broker-a", 0): 5})
    {'lines': {'broker-a@0': 5}}
    """
    table: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        table.setdefault(queue.topic, {})[local_name(queue)] = offsets[queue]
    return table


def offsets_from_json(table: QueueTable) -> Offsets:
    """Return the offsets from a table that ``offsets_to_json`` made."""
    return {
        MessageQueue.parse(f"{topic}@{name}"): offset
        for topic, queues in table.items()
        for name, offset in queues.items()
    }


def local_name(queue: MessageQueue) -> str:
    """Return the name of a queue within its topic.

    Examples
    --------
    >>> local_name(MessageQueue("lines", "broker-a", 0))
    'broker-a@0'
    """
    return f"{queue.broker}@{queue.queue_id}"


# From positions to offsets.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def match_queues(option: str, table: QueueTable, queues: Iterable[MessageQueue]) -> Offsets:
    """Return the queues that a table names, with their numbers.

    Raises
    ------
    SettingsError
        A queue does not exist, or several brokers have a queue of this number.
    """
    known: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        for name in (local_name(queue), str(queue.queue_id)):
            known.setdefault((queue.topic, name), []).append(queue)
    found: Offsets = {}
    for topic, numbers in table.items():
        for name, number in numbers.items():
            matching = known.get((topic, name), [])
            if len(matching) != 1:
                raise _no_single_queue(option, topic, name, matching or _of_topic(known, topic))
            found[matching[0]] = number
    return found


def _of_topic(
    known: Mapping[tuple[str, str], list[MessageQueue]], topic: str
) -> list[MessageQueue]:
    return sorted({one for (name, _), found in known.items() if name == topic for one in found})


def _no_single_queue(
    option: str, topic: str, name: str, queues: list[MessageQueue]
) -> SettingsError:
    choice = ", ".join(local_name(queue) for queue in queues)
    if not queues:
        return SettingsError(
            f"option '{option}' names topic '{topic}', which is not read",
            hint="name topics of subscribe, subscribePattern or assign",
        )
    return SettingsError(
        f"option '{option}' names queue {name} of topic '{topic}', which is not exactly one queue",
        hint=f"name one of {choice}",
    )


class Resolver:
    """Turns positions into offsets by asking the brokers.

    Parameters
    ----------
    consumer
        Reads the bounds of queues.
    strategy
        What to do if no message is as late as a time to start at.
    fail_on_data_loss
        Whether an offset outside its queue is an error, or is moved to the nearest one inside.
    """

    def __init__(
        self, consumer: PullConsumer, strategy: Strategy, *, fail_on_data_loss: bool
    ) -> None:
        self._consumer = consumer
        self._strategy: Strategy = strategy
        self._fail = fail_on_data_loss

    def starts(self, position: Position, queues: list[MessageQueue]) -> Offsets:
        """Return the offset to begin at, for each queue.

        Raises
        ------
        SettingsError
            The position does not fit the queues.
        OffsetExpiredError
            An offset is outside its queue.
        """
        match position:
            case AtTime(option, _) | AtTimes(option, _):
                found = self._by_time(position, queues)
                if self._strategy == "error":
                    self._refuse_ends(option, found)
                return found
            case _:
                return self._by_offset(position, queues)

    def ends(self, position: Position, queues: list[MessageQueue]) -> Offsets:
        """Return the offset before which to end, for each queue; raise as ``starts`` does."""
        match position:
            case AtTime() | AtTimes():
                return self._by_time(position, queues)
            case _:
                return self._by_offset(position, queues)

    def _by_offset(self, position: AtEdge | AtOffsets, queues: list[MessageQueue]) -> Offsets:
        if isinstance(position, AtEdge):
            if position.edge == "earliest":
                return self._consumer.begin_offsets(queues)
            return self._consumer.end_offsets(queues)
        given = _for_all(position.option, position.table, queues)
        begins = self._consumer.begin_offsets(queues)
        ends = self._consumer.end_offsets(queues)
        edges = {EARLIEST: begins, LATEST: ends}
        named = {q: edges[n][q] if n in edges else n for q, n in given.items()}
        return {
            queue: self._inside(position.option, queue, offset, (begins[queue], ends[queue]))
            for queue, offset in named.items()
        }

    def _inside(
        self, option: str, queue: MessageQueue, offset: int, bounds: tuple[int, int]
    ) -> int:
        nearest = min(max(offset, bounds[0]), bounds[1])
        if self._fail and offset != nearest:
            raise OffsetExpiredError(
                f"option '{option}' has offset {offset} for queue {queue}, which holds"
                f" {bounds[0]} to {bounds[1]}",
                hint="give an offset that it holds, or -2 (earliest) or -1 (latest), or set"
                " failOnDataLoss to false to take the nearest one",
            )
        return nearest

    def _by_time(self, position: AtTime | AtTimes, queues: list[MessageQueue]) -> Offsets:
        if isinstance(position, AtTime):
            return self._consumer.offsets_for_time(queues, _datetime(position.time))
        times = _for_all(position.option, position.table, queues)
        return {
            queue: self._consumer.offset_for_time(queue, _datetime(time))
            for queue, time in times.items()
        }

    def _refuse_ends(self, option: str, found: Offsets) -> None:
        ends = self._consumer.end_offsets(found)
        for queue, offset in found.items():
            if offset >= ends[queue]:
                raise SettingsError(
                    f"option '{option}': queue {queue} has no message stored at this time or later",
                    hint="give an earlier time, or set startingOffsetsByTimestampStrategy to"
                    " latest to begin such a queue at its end",
                )


def _for_all(option: str, table: QueueTable, queues: list[MessageQueue]) -> Offsets:
    found = match_queues(option, table, queues)
    missing = [queue for queue in queues if queue not in found]
    if missing:
        raise SettingsError(
            f"option '{option}' does not name queue {missing[0]}, which is also read",
            hint="name every queue; as an offset -2 is the earliest and -1 the latest",
        )
    return found


def _datetime(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
