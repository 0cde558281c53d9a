"""Blocks of stored records as columns, and records made from columns.

This is the way of every message through a job: no Python object is made for a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ProtocolError
from headrace.protocol.batches import batch_to_records
from headrace.protocol.codes import SysFlag
from headrace.protocol.compression import decompress
from headrace.protocol.layout import Int64s, locate, record_starts, slices
from headrace.protocol.property_columns import property_column
from headrace.protocol.records import (
    Records,
    encode_record,
    encode_records,
    join_records,
    record_sizes,
)
from headrace.protocol.stamps import stamp_records, tag_hashes

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer

__all__ = [
    "MessageColumns",
    "Records",
    "batch_to_records",
    "decode_columns",
    "encode_record",
    "encode_records",
    "join_records",
    "record_sizes",
    "record_starts",
    "stamp_records",
    "tag_hashes",
]

#: Most bytes that the compressed bodies of one block may unpack to.
_MAX_UNPACKED = 1 << 30


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
    sys_flag: npt.NDArray[np.int32]
    #: Bodies, decompressed.
    body: pa.BinaryArray
    #: Raw properties strings.
    properties: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.queue_offset)

    def before(self, offset: int) -> MessageColumns:
        """Take the messages below an offset of their queue."""
        count = int(np.searchsorted(self.queue_offset, offset))
        return self if count == len(self) else self.take(np.arange(len(self)) < count)

    def take(self, chosen: npt.NDArray[np.bool_]) -> MessageColumns:
        """Take those messages that are chosen."""
        rows = pa.array(chosen)
        return MessageColumns(
            self.queue_offset[chosen],
            self.position[chosen],
            self.born[chosen],
            self.stored[chosen],
            self.queue_id[chosen],
            self.sys_flag[chosen],
            self.body.filter(rows),
            self.properties.filter(rows),
        )

    def property(self, name: str) -> pa.BinaryArray:
        """Read one property of every message, null where a message does not have it."""
        return property_column(self.properties, name)


def decode_columns(block: Buffer, *, unpack: bool = True) -> MessageColumns:
    r"""Read a block of stored messages, as a pull returns it.

    Parameters
    ----------
    block
        The messages.
    unpack
        Whether compressed bodies are unpacked.  A broker leaves them as they are: one that is
        damaged must not keep it from reading the others.

    Raises
    ------
    ProtocolError
        The block is not a sequence of whole records, or a body cannot be unpacked.

    Examples
    --------
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
    sys_flag = head["sys_flag"].astype(np.int32)
    bodies = slices(block, layout.body_starts, layout.body_ends)
    return MessageColumns(
        queue_offset=head["queue_offset"].astype(np.int64),
        position=head["position"].astype(np.int64),
        born=head["born"].astype(np.int64),
        stored=head["stored"].astype(np.int64),
        queue_id=head["queue_id"].astype(np.int32),
        sys_flag=sys_flag,
        body=_decompressed(bodies, sys_flag) if unpack else bodies,
        properties=slices(block, layout.property_starts, layout.property_ends),
    )


def _no_messages() -> MessageColumns:
    longs = np.empty(0, np.int64)
    ints = np.empty(0, np.int32)
    none = pa.array([], pa.binary())
    return MessageColumns(longs, longs, longs, longs, ints, ints, none, none)


def _decompressed(bodies: pa.BinaryArray, sys_flag: npt.NDArray[np.int32]) -> pa.BinaryArray:
    rows = np.flatnonzero(sys_flag & SysFlag.COMPRESSED)
    if not len(rows):
        return bodies
    unpacked: list[bytes] = []
    total = 0
    for row in rows.tolist():
        unpacked.append(decompress(bodies[row].as_py(), int(sys_flag[row])))
        total += len(unpacked[-1])
        if total > _MAX_UNPACKED:
            raise ProtocolError(
                f"the bodies of one block unpack to more than {_MAX_UNPACKED} bytes",
                hint="pull fewer messages at a time",
            )
    places = np.arange(len(bodies))
    places[rows] = len(bodies) + np.arange(len(rows))
    return pa.concat_arrays([bodies, pa.array(unpacked, pa.binary())]).take(pa.array(places))
