"""Rows of the derived files, and how they are made from records.

An index row says where a record lies, a key row which key it has.  Both files have one row for
each record, in the order of the offsets, so row ``i`` of both is the same record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.protocol.columns import Records, record_sizes, tag_hashes
from headrace.protocol.layout import locate, slices
from headrace.protocol.properties import KEYS
from headrace.protocol.property_columns import property_column

if TYPE_CHECKING:
    from headrace.store.compaction.digests import KeyDigest

__all__ = [
    "INDEX",
    "KEY",
    "NOT_A_TOMBSTONE",
    "NOT_MET",
    "IndexRows",
    "KeyRows",
    "Rows",
    "describe",
]

INDEX = np.dtype(
    [
        ("offset", "<i8"),
        ("log_position", "<i8"),
        ("at", "<i8"),
        ("met", "<i8"),
        ("size", "<i4"),
        ("tag", "<i4"),
    ]
)
"""Queue offset, place in the commit log, place in the data file, when a compaction first met this
delete (ms of the store's age), size, hash of the tag."""

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<i8")])
"""The digest's 16 bytes as two numbers, queue offset.  A record without a key has zeros."""

NOT_A_TOMBSTONE = -2
NOT_MET = -1

IndexRows = npt.NDArray[Any]
"""An array of :data:`INDEX`."""

KeyRows = npt.NDArray[Any]
"""An array of :data:`KEY`."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of some records."""

    index: IndexRows
    keys: KeyRows
    #: Store times, ms since 1970.
    stored: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def part(self, first: int, last: int) -> Rows:
        """Give the rows of some of the records."""
        return Rows(self.index[first:last], self.keys[first:last], self.stored[first:last])

    @property
    def keyless(self) -> int:
        """How many records have no key.

        >>> Rows(np.zeros(2, INDEX), np.zeros(2, KEY), np.zeros(2, np.int64)).keyless
        2
        """
        return int(np.count_nonzero((self.keys["high"] == 0) & (self.keys["low"] == 0)))

    @property
    def tombstones(self) -> int:
        """How many records are deletes.

        >>> Rows(np.zeros(2, INDEX), np.zeros(2, KEY), np.zeros(2, np.int64)).tombstones
        2
        """
        return int(np.count_nonzero(self.index["met"] != NOT_A_TOMBSTONE))


def describe(records: Records, digest: KeyDigest) -> Rows:
    """Make the rows of stamped records; ``at`` counts from the first record.

    Raises
    ------
    ProtocolError
        The bytes are not whole records.
    """
    layout = locate(records.data, records.starts)
    head = layout.head
    index = np.empty(len(records), INDEX)
    index["offset"] = head["queue_offset"]
    index["log_position"] = head["position"]
    index["at"] = records.starts
    index["size"] = record_sizes(records)
    index["tag"] = tag_hashes(records)
    index["met"] = np.where(head["body_size"] == 0, NOT_MET, NOT_A_TOMBSTONE)
    properties = slices(records.data, layout.property_starts, layout.property_ends)
    keys = np.zeros(len(records), KEY)
    keys["offset"] = index["offset"]
    digests = digest.column(property_column(properties, KEYS))
    keys["high"], keys["low"] = digests[:, 0], digests[:, 1]
    return Rows(index, keys, head["stored"].astype(np.int64))
