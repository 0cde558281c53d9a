"""Blocks of stored records as columns, and records made from columns.

This is the way of every message through a job: no Python object is made for a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.layout import Int64s, locate, record_starts, slices
from headrace.protocol.messages import readable

# Properties of many messages at once, out of their raw properties strings.

_AFTER_NAME = 1
_AFTER_VALUE = 2


def property_column(properties: pa.BinaryArray, name: str) -> pa.BinaryArray:
    r"""Read one property of every message, null where a message does not have it.

    The rules are those of ``decode_properties``: the last of equal names counts, empty values
    do not.

    >>> raw = pa.array([b"TAGS\x01red\x02KEYS\x01k1\x02", b"", b"KEYS\x01k2"], pa.binary())
    >>> property_column(raw, "KEYS").to_pylist()
    [b'k1', None, b'k2']
    """
    count = len(properties)
    needle = name.encode()
    if not _has_text(properties) or not needle:
        return pa.nulls(count, pa.binary())
    data, text, bounds = _text(properties)
    marks = _name_ends(text, needle)
    rows, marks = _at_pair_starts(text, bounds, marks, len(needle))
    rows, begins, ends = _values(text, bounds, rows, marks)
    return _column(data, count, rows, begins, ends)


def rows_with_others(properties: pa.BinaryArray, known: Collection[bytes]) -> Int64s:
    r"""Return the messages that may have properties other than those that are known.

    >>> raw = pa.array([b"WAIT\x01true\x02", b"", b"WAIT\x01true\x02colour\x01red\x02"], pa.binary())
    >>> rows_with_others(raw, [b"WAIT"]).tolist()
    [2]
    """
    if not _has_text(properties):
        return np.empty(0, np.int64)
    data, text, bounds = _text(properties)
    marks = np.flatnonzero(text == _AFTER_NAME)
    rows = np.searchsorted(bounds, marks, side="right") - 1
    stops = np.append(-1, np.flatnonzero(text == _AFTER_VALUE))
    begins = np.maximum(stops[np.searchsorted(stops, marks) - 1] + 1, bounds[rows])
    # A separator within a value ends no name.
    begins, firsts = np.unique(begins, return_index=True)
    names = slices(memoryview(data), begins, marks[firsts]).dictionary_encode()
    others = np.array([name not in known for name in names.dictionary.to_pylist()], np.bool_)
    return np.unique(rows[firsts][others[names.indices.to_numpy()]])


def _has_text(properties: pa.BinaryArray) -> bool:
    return len(properties) > 0 and properties.buffers()[2] is not None


def _text(properties: pa.BinaryArray) -> tuple[pa.Buffer, npt.NDArray[np.uint8], Int64s]:
    """Return the bytes of all messages, as a buffer and as numbers, and where each message begins."""
    _, offset_buffer, data = properties.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[properties.offset :][: len(properties) + 1]
    base = int(offsets[0])
    text = np.frombuffer(data, np.uint8)[base : int(offsets[-1])]
    return data.slice(base), text, offsets.astype(np.int64) - base


def _name_ends(text: npt.NDArray[np.uint8], name: bytes) -> Int64s:
    """Return the separators that have the name in front of them."""
    marks = np.flatnonzero(text == _AFTER_NAME)
    marks = marks[marks >= len(name)]
    for back, char in enumerate(reversed(name), start=1):
        marks = marks[text[marks - back] == char]
    return marks


def _at_pair_starts(
    text: npt.NDArray[np.uint8], bounds: Int64s, marks: Int64s, size: int
) -> tuple[Int64s, Int64s]:
    """Keep the names that are whole names of one message; also return their messages' rows."""
    starts = marks - size
    rows = np.searchsorted(bounds, marks, side="right") - 1
    firsts = bounds[rows]
    whole = (starts == firsts) | ((starts > firsts) & (text[starts - 1] == _AFTER_VALUE))
    return rows[whole], marks[whole]


def _values(
    text: npt.NDArray[np.uint8], bounds: Int64s, rows: Int64s, marks: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    stops = np.append(np.flatnonzero(text == _AFTER_VALUE), len(text))
    ends = np.minimum(stops[np.searchsorted(stops, marks)], bounds[rows + 1])
    begins = marks + 1
    keep = ends > begins
    rows, begins, ends = rows[keep], begins[keep], ends[keep]
    if len(rows) > 1:
        last = np.append(rows[1:] != rows[:-1], np.True_)
        rows, begins, ends = rows[last], begins[last], ends[last]
    return rows, begins, ends


def _column(
    data: pa.Buffer, count: int, rows: Int64s, begins: Int64s, ends: Int64s
) -> pa.BinaryArray:
    values = slices(memoryview(data), begins, ends)
    if len(rows) == count:
        return values
    places = np.zeros(count, np.int32)
    places[rows] = np.arange(len(rows), dtype=np.int32)
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    return values.take(pa.array(places, mask=absent))


if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

    # The class has a method of that name.
    _Span = slice


#: A piece of a block ends where its compressed bodies have unpacked to so many bytes: it holds one
#: more body at most, and so fits into memory and into an Arrow column.
_PIECE_BYTES = 64 * 1024 * 1024
#: Most bytes that the compressed bodies of a block may unpack to that is read as a whole.
_MAX_UNPACKED = 1 << 30
_COMPRESSED = int(SysFlag.COMPRESSED)


@dataclass(frozen=True, slots=True, eq=False)
class MessageColumns:
    """Stored messages, field by field."""

    queue_offset: Int64s
    #: Place in the broker's commit log.
    position: Int64s
    #: When the producer made the message, ms since 1970.
    born: Int64s
    #: When the broker stored it, ms since 1970.
    stored: Int64s
    queue_id: npt.NDArray[np.int32]
    #: Without the bit of compression where the body is decompressed.
    sys_flag: npt.NDArray[np.int32]
    #: Decompressed; as stored where that was not asked for or cannot be done: see ``packed``.
    body: pa.BinaryArray
    #: Raw properties strings.
    properties: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.queue_offset)

    @property
    def packed(self) -> npt.NDArray[np.bool_]:
        """Whose body is still compressed: one that was to be read is damaged or too long."""
        found: npt.NDArray[np.bool_] = (self.sys_flag & _COMPRESSED) != 0
        return found

    def readable_body(self, row: int) -> bytes:
        """Return the body of one message as its producer wrote it.

        Raises
        ------
        ProtocolError
            It is compressed, and damaged or too long.
        """
        return readable(self.body[row].as_py(), int(self.sys_flag[row]))

    def before(self, offset: int) -> MessageColumns:
        """Take the messages below an offset of their queue."""
        return self.slice(0, int(np.searchsorted(self.queue_offset, offset)))

    def slice(self, first: int, last: int) -> MessageColumns:
        """Take the messages from one row up to another, that one left out."""
        if first == 0 and last == len(self):
            return self
        return self._rows(slice(first, last), lambda column: column[first:last])

    @classmethod
    def concat(cls, parts: list[MessageColumns]) -> MessageColumns:
        """Put columns behind one another."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.queue_offset for part in parts]),
            np.concatenate([part.position for part in parts]),
            np.concatenate([part.born for part in parts]),
            np.concatenate([part.stored for part in parts]),
            np.concatenate([part.queue_id for part in parts]),
            np.concatenate([part.sys_flag for part in parts]),
            pa.concat_arrays([part.body for part in parts]),
            pa.concat_arrays([part.properties for part in parts]),
        )

    def take(self, chosen: npt.NDArray[np.bool_]) -> MessageColumns:
        """Take those messages that are chosen."""
        rows = pa.array(chosen)
        return self._rows(chosen, lambda column: column.filter(rows))

    def pick(self, places: npt.NDArray[np.intp]) -> MessageColumns:
        """Take messages by their rows, in the order of these."""
        rows = pa.array(places)
        return self._rows(places, lambda column: column.take(rows))

    def _rows(
        self,
        chosen: _Span | npt.NDArray[np.bool_] | npt.NDArray[np.intp],
        of_bytes: Callable[[pa.BinaryArray], pa.BinaryArray],
    ) -> MessageColumns:
        return MessageColumns(
            self.queue_offset[chosen],
            self.position[chosen],
            self.born[chosen],
            self.stored[chosen],
            self.queue_id[chosen],
            self.sys_flag[chosen],
            of_bytes(self.body),
            of_bytes(self.properties),
        )

    def property(self, name: str) -> pa.BinaryArray:
        """Read one property of every message, null where a message does not have it."""
        return property_column(self.properties, name)

    def unpacked(self) -> Iterator[MessageColumns]:
        """Decompress bodies, in as many pieces as what they unpack to asks for.

        A body that cannot be unpacked stays as it is: it is ``packed``.
        """
        first, size = 0, 0
        bodies: dict[int, bytes] = {}
        for row in np.flatnonzero(self.packed).tolist():
            with suppress(ProtocolError):
                body = bodies[row - first] = self.readable_body(row)
                size += len(body)
            if size >= _PIECE_BYTES:
                yield _with_bodies(self.slice(first, row + 1), bodies)
                first, bodies, size = row + 1, {}, 0
        if first < len(self) or not first:
            yield _with_bodies(self.slice(first, len(self)), bodies)


def decode_columns(block: Buffer, *, unpack: bool = True) -> MessageColumns:
    r"""Read a block of stored messages, as a pull returns it.

    Parameters
    ----------
    block
        The messages.
    unpack
        Whether compressed bodies are unpacked, all at once: ``unpacked()`` of columns that were
        read without does it in pieces.

    Raises
    ------
    ProtocolError
        The block is not a sequence of whole records, or its bodies unpack to more than 1 GiB.

    Examples
    --------
    >>> from headrace.protocol.records import encode_records
    >>> records = encode_records("lines", 2, [b"to be", b"or not"], b"KEYS\x01k\x02", born=7)
    >>> columns = decode_columns(records.data)
    >>> columns.body.to_pylist(), columns.queue_id.tolist()
    ([b'to be', b'or not'], [2, 2])
    >>> columns.property("KEYS").to_pylist()
    [b'k', b'k']
    """
    starts = record_starts(block)
    if not len(starts):
        return _no_messages()
    layout = locate(block, starts)
    head = layout.head
    columns = MessageColumns(
        queue_offset=head["queue_offset"].astype(np.int64),
        position=head["position"].astype(np.int64),
        born=head["born"].astype(np.int64),
        stored=head["stored"].astype(np.int64),
        queue_id=head["queue_id"].astype(np.int32),
        sys_flag=head["sys_flag"].astype(np.int32),
        body=slices(block, layout.body_starts, layout.body_ends),
        properties=slices(block, layout.property_starts, layout.property_ends),
    )
    return _at_once(columns) if unpack else columns


def _at_once(columns: MessageColumns) -> MessageColumns:
    pieces: list[MessageColumns] = []
    size = 0
    for piece in columns.unpacked():
        pieces.append(piece)
        size += piece.body.nbytes
        if size > _MAX_UNPACKED:
            raise ProtocolError(
                f"the bodies of one block unpack to more than {_MAX_UNPACKED} bytes",
                hint="pull fewer messages at a time",
            )
    return MessageColumns.concat(pieces)


def _no_messages() -> MessageColumns:
    longs = np.empty(0, np.int64)
    ints = np.empty(0, np.int32)
    none = pa.array([], pa.binary())
    return MessageColumns(longs, longs, longs, longs, ints, ints, none, none)


def _with_bodies(columns: MessageColumns, unpacked: dict[int, bytes]) -> MessageColumns:
    if not unpacked:
        return columns
    rows = np.array(list(unpacked), np.intp)
    places = np.arange(len(columns))
    places[rows] = len(columns) + np.arange(len(rows))
    bodies = pa.concat_arrays([columns.body, pa.array(unpacked.values(), pa.binary())])
    flags = columns.sys_flag.copy()
    flags[rows] &= ~_COMPRESSED
    return replace(columns, sys_flag=flags, body=bodies.take(pa.array(places)))
