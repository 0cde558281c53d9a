"""Rows as messages: which queue each goes to, and what it carries, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigurationError, MessageRejectedError, TopicNotFoundError
from headrace.keys import encode_keys, key_properties, partitions_of
from headrace.protocol.properties import TAGS
from headrace.spark.rocketmq.headers import header_properties

if TYPE_CHECKING:
    from headrace.client import MessageQueue

__all__ = ["Outgoing", "RowRouter"]

_Int64s = npt.NDArray[np.int64]
_Key = str | bytes | None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages for one queue, in order."""

    queue: MessageQueue
    bodies: pa.BinaryArray
    #: Raw properties strings.
    properties: pa.BinaryArray
    #: When each was made, in ms since 1970; None: now.
    born: pa.Int64Array | None

    def __len__(self) -> int:
        return len(self.bodies)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of rows that have one."""

    rows: _Int64s
    encoded: list[bytes]
    #: Their properties, one for every row, empty without a key.
    properties: pa.BinaryArray


class RowRouter:
    """Turns rows into messages, grouped by queue.

    A row with a number in ``queue`` goes there; otherwise its key decides by the hash that all of
    Headrace uses; rows without a key are spread evenly.

    Parameters
    ----------
    topic
        Topic of all rows; None: the column ``topic`` says.
    queues_of
        Gives the writable queues of a topic, in order.
    spread
        Where the spreading of rows without a key begins.
    """

    def __init__(
        self, topic: str | None, queues_of: Callable[[str], Sequence[MessageQueue]], spread: int
    ) -> None:
        self._topic = topic
        self._queues_of = queues_of
        self._spread = spread

    def route(self, rows: pa.Table) -> Iterator[Outgoing]:
        """Make the messages of some rows.

        Raises
        ------
        ConfigurationError
            A row has no topic, or names a queue that its topic does not have.
        TopicNotFoundError
            A topic does not exist or takes no messages.
        MessageRejectedError
            A row holds what a message cannot carry.
        """
        bodies = _column(rows, "value", pa.binary())
        keys = _keys(rows)
        properties = _properties(rows, keys)
        born = _born(rows)
        for queue, picks in self._groups(rows, keys):
            chosen = pa.array(picks)
            yield Outgoing(
                queue,
                bodies.take(chosen),
                properties.take(chosen),
                None if born is None else born.take(chosen),
            )

    def _groups(self, rows: pa.Table, keys: _Keys) -> Iterator[tuple[MessageQueue, _Int64s]]:
        for topic, picks in self._topics(rows):
            queues = list(self._queues_of(topic))
            if not queues:
                raise TopicNotFoundError(
                    f"topic '{topic}' has no queue that takes messages",
                    hint="check its permissions and that its broker runs",
                )
            numbers = self._numbers(rows, keys, queues)[picks]
            order = np.argsort(numbers, kind="stable")
            edges = np.searchsorted(numbers[order], np.arange(len(queues) + 1))
            for number, queue in enumerate(queues):
                if edges[number] < edges[number + 1]:
                    yield queue, picks[order[edges[number] : edges[number + 1]]]

    def _topics(self, rows: pa.Table) -> Iterator[tuple[str, _Int64s]]:
        if self._topic is not None:
            yield self._topic, np.arange(len(rows))
            return
        column = _column(rows, "topic", pa.string())
        if column.null_count:
            raise ConfigurationError(
                "a row has null in column 'topic', and there is no option 'topic'",
                hint="filter such rows out, or set the option to send all rows to one topic",
            )
        coded = column.dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        for number, topic in enumerate(coded.dictionary.to_pylist()):
            yield topic, order[edges[number] : edges[number + 1]]

    def _numbers(self, rows: pa.Table, keys: _Keys, queues: list[MessageQueue]) -> _Int64s:
        """The place of each row's queue among the topic's queues."""
        count = len(rows)
        # In runs, so that a queue gets its rows in few requests.
        numbers = (self._spread + np.arange(count) * len(queues) // max(count, 1)) % len(queues)
        self._spread += 1
        numbers[keys.rows] = partitions_of(keys.encoded, len(queues))
        if "queue" in rows.column_names:
            wanted = _column(rows, "queue", pa.int64())
            given = np.flatnonzero(wanted.is_valid().to_numpy(zero_copy_only=False))
            brokers = (
                _column(rows, "broker", pa.string()) if "broker" in rows.column_names else None
            )
            numbers[given] = _named_queues(
                wanted.take(pa.array(given)),
                None if brokers is None else brokers.take(pa.array(given)),
                queues,
            )
        return numbers


def _named_queues(
    numbers: pa.Int64Array, brokers: pa.StringArray | None, queues: list[MessageQueue]
) -> _Int64s:
    if brokers is None:
        brokers = pa.nulls(len(numbers), pa.string())
    places: dict[tuple[str | None, int], list[int]] = {}
    for place, queue in enumerate(queues):
        for broker in (queue.broker, None):
            places.setdefault((broker, queue.queue_id), []).append(place)
    named = zip(brokers.to_pylist(), numbers.to_pylist(), strict=True)
    return np.array([_single(places.get(name, []), name, queues) for name in named], np.int64)


def _single(found: list[int], name: tuple[str | None, int], queues: list[MessageQueue]) -> int:
    if len(found) == 1:
        return found[0]
    broker, number = name
    where = f"queue {number}" + (f" of broker '{broker}'" if broker is not None else "")
    there = ", ".join(f"{queue.broker}@{queue.queue_id}" for queue in queues)
    raise ConfigurationError(
        f"a row is for {where}, which is not one queue of topic '{queues[0].topic}': it has"
        f" {there}",
        hint="correct the columns 'queue' and 'broker', or leave them out",
    )


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    chunked = rows.column(name).combine_chunks()
    whole = chunked if isinstance(chunked, pa.Array) else pa.concat_arrays(chunked.chunks)
    return whole.cast(kind)


def _keys(rows: pa.Table) -> _Keys:
    count = len(rows)
    if "key" not in rows.column_names:
        return _Keys(np.empty(0, np.int64), [], pa.array([b""] * count, pa.binary()))
    column = _column(rows, "key", pa.binary())
    present = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    keys = _key_values(column.take(pa.array(present)))
    encoded = encode_keys(keys)
    written = pa.array(key_properties(keys, encoded), pa.binary())
    if len(present) < count:
        places = np.zeros(count, np.int64)
        places[present] = np.arange(len(present))
        absent = np.ones(count, np.bool_)
        absent[present] = False
        written = pc.fill_null(written.take(pa.array(places, mask=absent)), b"")
    return _Keys(present, encoded, written)


def _key_values(column: pa.BinaryArray) -> list[_Key]:
    """Text where the bytes are UTF-8, as every client writes keys; other bytes as they are."""
    try:
        texts: list[_Key] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [_text_or_bytes(key) for key in column.to_pylist()]
    return texts


def _text_or_bytes(key: bytes) -> _Key:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _properties(rows: pa.Table, keys: _Keys) -> pa.BinaryArray:
    parts = [keys.properties]
    if "tags" in rows.column_names:
        parts.append(_tag_properties(_column(rows, "tags", pa.string())))
    if "headers" in rows.column_names:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
        parts.append(header_properties(_column(rows, "headers", kind)))
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b"")


def _tag_properties(tags: pa.StringArray) -> pa.BinaryArray:
    if pc.any(pc.match_substring_regex(tags, "[\x01\x02]")).as_py():
        raise MessageRejectedError(
            "a value of column 'tags' holds U+0001 or U+0002, which separate properties",
            hint="tags are short plain words",
        )
    pairs = pc.binary_join_element_wise(
        f"{TAGS}\x01".encode(), tags.cast(pa.binary()), b"\x02", b""
    )
    absent = pc.equal(pc.fill_null(pc.binary_length(tags), 0), 0)
    return pc.if_else(absent, pa.scalar(b"", pa.binary()), pairs)


def _born(rows: pa.Table) -> pa.Int64Array | None:
    for name in ("bornTimestamp", "timestamp"):
        if name in rows.column_names:
            column = rows.column(name).combine_chunks()
            zone = column.type.tz
            return (
                _column(rows, name, pa.timestamp("us", zone))
                .cast(pa.timestamp("ms", zone), safe=False)
                .cast(pa.int64())
            )
    return None
