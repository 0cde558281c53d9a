"""Dead letters: copies of records that failed, addressed to the dead-letter topic."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.connect.columns import SOURCE_SCHEMA

if TYPE_CHECKING:
    from headrace.connect.config import Masking
    from headrace.connect.handling.failures import Failure
    from headrace.connect.handling.rows import Message

__all__ = ["PREFIX", "DeadLetter", "dead_letter", "rows_of"]

PREFIX: Final = "__connect.errors."
"""What the names of all context headers begin with."""

# All properties of a message must fit into 32 KB together.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACE = 8000

# These two part properties from each other in a message.
_SEPARATORS = str.maketrans({"\x01": " ", "\x02": " "})


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message for the dead-letter topic.

    Key and value are the bytes that were read, not what converters and transforms made of them.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str]
    timestamp_ms: int | None


def dead_letter(
    message: Message, failure: Failure, topic: str, *, context: bool, masking: Masking
) -> DeadLetter:
    """Make the copy of a message, with headers that say what happened to it."""
    properties = dict(message.properties)
    if context:
        properties |= _context(message, failure, masking)
    return DeadLetter(topic, message.key, message.value, properties, message.timestamp_ms)


def _context(message: Message, failure: Failure, masking: Masking) -> dict[str, str]:
    error = failure.error
    kind = type(error)
    trace = "".join(traceback.format_exception(error))
    said = {
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "partition": str(message.queue.queue_id),
        "offset": str(message.offset),
        "connector.name": failure.connector,
        "task.id": str(failure.task),
        "stage": str(failure.stage),
        "class.name": failure.executing,
        "exception.class.name": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": masking(str(error))[:_LONGEST_MESSAGE],
        # What was called last stands at the end.
        "exception.stacktrace": masking(trace)[-_LONGEST_TRACE:],
    }
    return {PREFIX + name: text.translate(_SEPARATORS) for name, text in said.items()}


def rows_of(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Give dead letters as rows, in the columns that a source's records have."""
    columns = {
        "topic": [one.topic for one in letters],
        "queue": [None] * len(letters),
        "key": [one.key for one in letters],
        "value": [one.value for one in letters],
        "properties": [list(one.properties.items()) for one in letters],
        "timestamp": [one.timestamp_ms for one in letters],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)
