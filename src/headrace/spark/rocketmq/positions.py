"""Positions in queues as the options name them: an edge, offsets, or times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headrace.client import MessageQueue
from headrace.errors import SettingsError

__all__ = [
    "EARLIEST",
    "LATEST",
    "AtEdge",
    "AtOffsets",
    "AtTime",
    "AtTimes",
    "Offsets",
    "Position",
    "QueueTable",
    "Strategy",
    "local_name",
    "offsets_from_json",
    "offsets_to_json",
    "read_offsets",
    "read_queue_lists",
    "read_queue_numbers",
]

LATEST = -1
"""In JSON offsets: the end of the queue."""

EARLIEST = -2
"""In JSON offsets: the first message that the queue still holds."""

Offsets: TypeAlias = dict[MessageQueue, int]
"""Next offset to read, by queue."""

QueueTable: TypeAlias = Mapping[str, Mapping[str, int]]
"""Numbers by topic and name of the queue there: ``0``, or ``broker-a@0``."""

Strategy: TypeAlias = Literal["error", "latest"]
"""What to do where no message is as late as the time to start at."""


@dataclass(frozen=True, slots=True)
class AtEdge:
    """The first message that a queue holds, or behind its last."""

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
    """Read ``earliest``, ``latest`` or JSON.

    Raises
    ------
    SettingsError
        It is none of them.

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
        raise _wrong(option, text, "nothing stands before -2 (earliest)")
    return AtOffsets(option, table)


def read_queue_numbers(option: str, text: str) -> Position:
    """Read one time in ms since 1970, or times as JSON by topic and queue.

    Raises
    ------
    SettingsError
        It is neither.
    """
    if not option.endswith("ByTimestamp"):
        if not text.strip().isdecimal():
            raise _wrong(option, text, "write a time in milliseconds since 1970")
        return AtTime(option, int(text))
    return AtTimes(option, _table(option, text, 0))


def read_queue_lists(option: str, text: str) -> QueueTable:
    """Read JSON with the queues of each topic.

    Raises
    ------
    SettingsError
        It is no such JSON.

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
    """Write offsets the way ``startingOffsets`` takes them, equal ones equally.

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
    """Read what ``offsets_to_json`` wrote."""
    return {
        MessageQueue.parse(f"{topic}@{name}"): offset
        for topic, queues in table.items()
        for name, offset in queues.items()
    }


def local_name(queue: MessageQueue) -> str:
    """Name a queue within its topic.

    Examples
    --------
    >>> local_name(MessageQueue("lines", "broker-a", 0))
    'broker-a@0'
    """
    return f"{queue.broker}@{queue.queue_id}"
