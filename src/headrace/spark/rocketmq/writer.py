"""The writers that Spark calls: they send rows as messages, at least once."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.client import MessageQueue, Producer
from headrace.encoding import decode
from headrace.errors import (
    ConfigurationError,
    DeserializationError,
    HeadraceError,
    MessageRejectedError,
    TopicNotFoundError,
)
from headrace.keys import EXACT_KEY, encode_keys, key_properties, partitions_of, text_or_bytes
from headrace.protocol import properties as names
from headrace.protocol.journal_tags import TAG
from headrace.protocol.layout import slices
from headrace.protocol.properties import KEYS, TAGS
from headrace.runtime.batches.cutting import BATCH
from headrace.spark.rocketmq.options import WriteOptions, connect
from headrace.spark.worker import end_of_task

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns


# Headers: the properties of messages that are the user's own, as Arrow columns.

#: Properties that RocketMQ or Headrace sets and reads; some have columns of their own.
RESERVED = names.NAMES | {EXACT_KEY, BATCH, TAG}

_AFTER_NAME, _AFTER_VALUE = 1, 2
_Int64s = npt.NDArray[np.int64]


def text_column(values: pa.BinaryArray) -> pa.StringArray:
    r"""Decode bytes as UTF-8; invalid bytes become U+FFFD, as in Java.

    Examples
    --------
    >>> text_column(pa.array([b"a", b"\xff", None], pa.binary())).to_pylist()
    ['a', '\ufffd', None]
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if one is None else one.decode("utf-8", "replace") for one in values.to_pylist()
        ]
        return pa.array(texts, pa.string())


def headers_column(properties: pa.BinaryArray, kind: pa.ListType) -> pa.ListArray:
    r"""Return the user's own properties of every message; null if there are none.

    Parameters
    ----------
    properties
        The properties strings of the messages, as they are on the wire.
    kind
        The column's type: a list of structs of ``key`` and ``value``.

    Examples
    --------
    >>> kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    >>> raw = pa.array([b"KEYS\x01k\x02", b"KEYS\x01k\x02origin\x01web\x02"], pa.binary())
    >>> headers_column(raw, kind).to_pylist()
    [None, [{'key': 'origin', 'value': 'web'}]]
    """
    count = len(properties)
    rows, found, values = _pairs(properties)
    keep = np.flatnonzero(~_is_reserved(found)) if len(rows) else np.empty(0, np.int64)
    if len(keep):
        keep = _last_of_equals(rows, found, keep)
    picks = pa.array(keep)
    pair = kind.value_type
    struct = pa.StructArray.from_arrays(
        [found.take(picks).cast(pa.string()), text_column(values.take(picks))],
        fields=[pair.field(0), pair.field(1)],
    )
    sizes = np.bincount(rows[keep], minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    mask = pa.array(sizes == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), struct, type=kind, mask=mask)


def _pairs(properties: pa.BinaryArray) -> tuple[_Int64s, pa.DictionaryArray, pa.BinaryArray]:
    """Return the row, name and value of every complete pair, in order."""
    _, offset_buffer, data = properties.buffers()
    if not len(properties) or data is None:
        nothing = pa.array([], pa.binary())
        return np.empty(0, np.int64), text_column(nothing).dictionary_encode(), nothing
    bounds = np.frombuffer(offset_buffer, np.int32)[properties.offset :][: len(properties) + 1]
    bounds = bounds.astype(np.int64)
    base, end = int(bounds[0]), int(bounds[-1])
    text = np.frombuffer(data, np.uint8)[base:end]
    bounds -= base
    # A pair begins where a message does, and after the end of another pair.
    is_cut = np.zeros(len(text) + 1, np.bool_)
    is_cut[1:] = text == _AFTER_VALUE
    is_cut[bounds] = True
    cuts = np.flatnonzero(is_cut)
    begins, ends = cuts[:-1], cuts[1:]
    ends = ends - (text[ends - 1] == _AFTER_VALUE)
    marks = np.append(np.flatnonzero(text == _AFTER_NAME), len(text))
    marks = marks[np.searchsorted(marks, begins)]
    whole = (marks > begins) & (marks + 1 < ends)
    begins, marks, ends = begins[whole], marks[whole], ends[whole]
    rows = np.searchsorted(bounds, begins, side="right") - 1
    block = memoryview(data)[base:end]
    found = text_column(slices(block, begins, marks)).dictionary_encode()
    return rows, found, slices(block, marks + 1, ends)


def _is_reserved(found: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    reserved = np.array([name in RESERVED for name in found.dictionary.to_pylist()], np.bool_)
    chosen: npt.NDArray[np.bool_] = reserved[found.indices.to_numpy()]
    return chosen


def _last_of_equals(rows: _Int64s, found: pa.DictionaryArray, keep: _Int64s) -> _Int64s:
    rows = rows[keep]
    if not (rows[1:] == rows[:-1]).any():
        return keep
    marks = rows * len(found.dictionary) + found.indices.to_numpy()[keep]
    _, last = np.unique(marks[::-1], return_index=True)
    return keep if len(last) == len(keep) else np.sort(keep[len(keep) - 1 - last])


def header_properties(headers: pa.ListArray) -> pa.BinaryArray:
    """Return headers as properties strings, empty for rows without headers.

    Raises
    ------
    MessageRejectedError
        RocketMQ or Headrace sets a header's name itself, the header lacks a name or a value, or it
        holds a separator.
    """
    flat = headers.flatten()
    keys, values = flat.field(0), flat.field(1)
    _check_names(keys)
    _check_values(keys, values)
    pairs = pc.binary_join_element_wise(keys, values, "\x01").cast(pa.binary())
    pairs = pc.binary_join_element_wise(pairs, b"\x02", b"")
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pairs), b"")


def _check_names(keys: pa.StringArray) -> None:
    for name in keys.unique().to_pylist():
        if name in RESERVED:
            raise MessageRejectedError(
                f"a header is called '{name}', which RocketMQ or Headrace sets itself",
                hint="give keys and tags in the columns 'key' and 'tags', or rename the header",
            )


def _check_values(keys: pa.StringArray, values: pa.StringArray) -> None:
    for column, what in ((keys, "name"), (values, "value")):
        # A property needs at least one character, so empty text is as bad as null.
        good = pc.match_substring_regex(column, "^[^\x01\x02]+$")
        bad = np.flatnonzero(~good.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
        if len(bad):
            row = int(bad[0])
            raise MessageRejectedError(
                f"a header has the {what} {column[row].as_py()!r} (name {keys[row].as_py()!r}),"
                " which a message cannot carry",
                hint="leave out headers without a name or value; U+0001 and U+0002 separate them",
            )


# Rows as messages: the queue and the contents of each, column by column.

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
        Returns the writable queues of a topic, in order.
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
        """Return the place of each row's queue among the topic's queues."""
        count = len(rows)
        # Rows without a key go in runs, so that a queue gets its rows in few requests.
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
        f"a row is for {where}, which is not exactly one queue of topic '{queues[0].topic}': it has"
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
    """Return keys as text if they are UTF-8, as every client writes them; others as bytes."""
    try:
        texts: list[_Key] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return [text_or_bytes(key) for key in column.to_pylist()]
    return texts


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


# Failures as Spark shows them: the message, without a traceback of our own code.

P = ParamSpec("P")
R = TypeVar("R")


def clear_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that our own errors come without their traceback.

    Spark would print the traceback before the message and the hint, and so hide the two lines that
    matter.
    """

    @functools.wraps(call)
    def clear(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except HeadraceError as error:
            raise error.with_traceback(None) from None

    return clear


def clear_errors_of(items: Iterator[R]) -> Generator[R, None, None]:
    """Yield the items of an iterator, and drop the traceback of our own errors."""
    try:
        yield from items
    except HeadraceError as error:
        raise error.with_traceback(None) from None


# Messages as rows: blocks become Arrow record batches, column by column.


@dataclass(frozen=True, slots=True)
class _Block:
    """The first ``count`` messages of a block, which are to become rows."""

    queue: MessageQueue
    columns: MessageColumns
    count: int

    def __len__(self) -> int:
        return self.count


_Maker = Callable[[_Block, pa.DataType], pa.Array]


def _key(block: _Block, kind: pa.DataType) -> pa.Array:
    columns = block.columns
    keys = columns.property(KEYS)[: len(block)]
    exact = columns.property(EXACT_KEY)[: len(block)]
    if exact.null_count == len(exact):
        return keys
    # Keys that are not text, or are too long for KEYS, are rare.
    pairs = zip(keys.to_pylist(), exact.to_pylist(), strict=True)
    return pa.array([key if data is None else _exact_key(key, data) for key, data in pairs], kind)


def _exact_key(key: bytes | None, data: bytes) -> bytes | None:
    """Return a key of bytes or text as it was written; others stay hex, as in KEYS."""
    try:
        found = decode(bytes.fromhex(data.decode("ascii")))
    except (ValueError, DeserializationError):
        return key
    if isinstance(found, str):
        return found.encode("utf-8", "surrogatepass")
    return found if isinstance(found, bytes) else key


def _value(block: _Block, _: pa.DataType) -> pa.Array:
    packed = block.columns.packed[: len(block)]
    bodies = block.columns.body[: len(block)]
    return pc.if_else(packed, None, bodies) if packed.any() else bodies


def _constant(value: object, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _milliseconds(times: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(times), [None, pa.py_buffer(times * 1000)])


_MAKERS: Mapping[str, _Maker] = {
    "key": _key,
    "value": _value,
    "topic": lambda block, kind: _constant(block.queue.topic, len(block), kind),
    "broker": lambda block, kind: _constant(block.queue.broker, len(block), kind),
    "queue": lambda block, kind: _constant(block.queue.queue_id, len(block), kind),
    "offset": lambda block, kind: pa.array(block.columns.queue_offset[: len(block)], kind),
    "timestamp": lambda block, kind: _milliseconds(block.columns.stored[: len(block)], kind),
    "bornTimestamp": lambda block, kind: _milliseconds(block.columns.born[: len(block)], kind),
    "tags": lambda block, _: text_column(block.columns.property(TAGS)[: len(block)]),
    "headers": lambda block, kind: headers_column(block.columns.properties[: len(block)], kind),
}


def record_batch(
    queue: MessageQueue, columns: MessageColumns, end: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the messages with offsets below ``end`` as rows with the columns of a schema."""
    block = _Block(queue, columns, int(np.searchsorted(columns.queue_offset, end)))
    arrays = [_MAKERS[field.name](block, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


#: Rows are collected up to this many bytes, so that requests are full and run side by side.
_ENOUGH = 8 * 1024 * 1024
_SENDERS = 8


@dataclass(frozen=True)
class TaskSent(WriterCommitMessage):
    """What a task reports to Spark: how much it has sent."""

    messages: int


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> TaskSent:
    """Send rows as messages; return when the brokers have confirmed all of them.

    Raises
    ------
    ConfigurationError
        A row names no topic, or a queue that does not exist.
    MessageRejectedError
        A row holds what a message cannot carry.
    MessageTooLargeError
        A message is above the size limit.
    """
    client = connect(options.cluster)
    producer = Producer(client)
    router = RowRouter(
        options.topic,
        lambda topic: client.queues(topic, for_="write"),
        spread=random.randrange(1 << 16),
    )
    messages = 0
    with ThreadPoolExecutor(_SENDERS, "headrace-send") as senders:
        for rows in _collected(batches):
            parts = list(router.route(rows))
            for _ in senders.map(lambda part: _send(producer, part), parts):
                pass
            messages += len(rows)
    return TaskSent(messages)


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            size += batch.nbytes
        if size >= _ENOUGH:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _send(producer: Producer, part: Outgoing) -> None:
    if part.born is None:
        producer.send_columns(part.queue, part.bodies, properties=part.properties)
        return
    for begin, end, born in _runs(part.born):
        producer.send_columns(
            part.queue,
            part.bodies[begin:end],
            properties=part.properties[begin:end],
            born=born,
        )


def _runs(born: pa.Int64Array) -> Iterator[tuple[int, int, int | None]]:
    """Yield runs of rows with the same time, since a batch on the wire has only one time."""
    times = np.asarray(born.fill_null(-1).to_numpy(zero_copy_only=False))
    edges = [0, *(np.flatnonzero(times[1:] != times[:-1]) + 1).tolist(), len(times)]
    for begin, end in itertools.pairwise(edges):
        yield begin, end, born[begin].as_py()


class RocketMQWriter(DataSourceArrowWriter):
    """Writes the rows of a batch.

    Parameters
    ----------
    options
        Where to write.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @clear_errors
    def write(self, iterator: Iterator[Any]) -> TaskSent:
        """Send the rows of one task of the write."""
        written = write_rows(self._options, iterator)
        end_of_task()
        return written


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a query.

    Parameters
    ----------
    options
        Where to write.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @clear_errors
    def write(self, iterator: Iterator[Any]) -> TaskSent:
        """Send the rows of one task of one batch."""
        written = write_rows(self._options, iterator)
        end_of_task()
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing, because the brokers have already confirmed all messages."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing, because sent messages cannot be taken back."""
