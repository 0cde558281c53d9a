"""Frames: tuples of one edge on their way to one partition, in columns.

=============  ==================================================================
part           what it holds
=============  ==================================================================
sender         partition that sends (8 bytes, big-endian), so that frames sort by it
head           number of tuples (u32), how the values are written (u8)
four columns   marks, times, emitting tasks, taking tasks: a byte that tells
               whether one value stands for all, then i64 values
values         MessagePack, or a pickle where that would not give back the same
=============  ==================================================================
"""

from __future__ import annotations

import pickle
import struct
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headrace.errors import SerializationError
from headrace.runtime.chunk import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.chunk import Int64s

__all__ = ["TupleFrame", "unpack_frames"]

_SENDER_BYTES = 8
_HEAD = struct.Struct("<IB")
_PACKED, _PICKLED = 0, 1
_ONE, _MANY = b"\1", b"\0"
_INT64 = np.dtype("<i8")

#: Types that MessagePack gives back as they were.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode

Row = tuple[Any, ...]


class TupleFrame:
    """Tuples for the tasks of one partition.

    Parameters
    ----------
    rows
        The values of each tuple.
    columns
        Marks, times, emitting tasks and taking tasks.

    Examples
    --------
    >>> ones = np.ones(2, np.int64)
    >>> frame = TupleFrame([("to", 1), ("be", 2)], (ones, ones, ones, np.array([0, 2])))
    >>> chunk = unpack_frames([frame.pack(0)])
    >>> chunk.values, chunk.targets.tolist()
    ([('to', 1), ('be', 2)], [0, 2])
    """

    def __init__(self, rows: list[Row], columns: Sequence[Int64s]) -> None:
        self._rows = rows
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def pack(self, sender: int = 0) -> bytes:
        """Encode the frame, behind the number of the partition that sends it.

        Raises
        ------
        SerializationError
            A value is neither plain data nor can it be pickled.
        """
        form, values = _packed(self._rows)
        parts = [sender.to_bytes(_SENDER_BYTES, "big"), _HEAD.pack(len(self), form)]
        for column in self._columns:
            same = bool((column == column[0]).all())
            kept = column[:1] if same else column
            parts += (_ONE if same else _MANY, kept.astype(_INT64).tobytes())
        return b"".join([*parts, values])


def unpack_frames(payloads: Sequence[bytes]) -> Chunk:
    """Decode frames into one chunk, in the order of the marks; equal marks by their senders."""
    return Chunk.merge([_unpacked(payload) for payload in sorted(payloads)])


def _unpacked(payload: bytes) -> Chunk:
    count, form = _HEAD.unpack_from(payload, _SENDER_BYTES)
    at = _SENDER_BYTES + _HEAD.size
    columns = []
    for _ in range(4):
        same = payload[at : at + 1] == _ONE
        number = 1 if same else count
        column = np.frombuffer(payload, _INT64, number, at + 1)
        columns.append(np.repeat(column, count) if same else column)
        at += 1 + number * _INT64.itemsize
    data = memoryview(payload)[at:]
    # Pickles come from tasks of the same job, never from outside.
    values = _decode(data) if form == _PACKED else pickle.loads(data)  # noqa: S301
    marks, times, emitters, targets = columns
    return Chunk(None, values, times, marks, emitters=emitters, targets=targets)


def _packed(rows: list[Row]) -> tuple[int, bytes]:
    if _PLAIN.issuperset(map(type, chain.from_iterable(rows))):
        try:
            return _PACKED, _encode(rows)
        except (OverflowError, UnicodeEncodeError):
            pass
    try:
        return _PICKLED, pickle.dumps(rows, protocol=5)
    except Exception as error:
        raise _unpicklable(rows) from error


def _unpicklable(rows: list[Row]) -> SerializationError:
    for row in rows:
        for place, value in enumerate(row):
            try:
                pickle.dumps(value, protocol=5)
            except Exception as error:  # noqa: BLE001 - __reduce__ of any class may raise anything
                return SerializationError(
                    f"value {place} of the tuple {row!r:.200} cannot be sent to another task:"
                    f" {type(error).__name__}: {error}",
                    hint="emit plain data, or objects of classes that workers can import",
                )
    return SerializationError("tuples cannot be sent to another task")
