"""Making index units again from the log, when an index file is damaged or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.protocol.columns import Records, record_sizes, record_starts, tag_hashes
from headrace.store.entries import Entry, EntryKind
from headrace.store.fences import parse_losses
from headrace.store.index_files import UNIT, Units
from headrace.store.record import queue_of, queue_offset_of
from headrace.store.scanner import scan

if TYPE_CHECKING:
    from headrace.store.index import QueueKey
    from headrace.store.log import CommitLog

__all__ = ["remake_units"]


def remake_units(log: CommitLog, key: QueueKey, first: int, last: int, position: int) -> Units:
    """Make the units of some offsets again, from the log at a position on.

    Units of records that the log does not hold (any more) are zeros.
    """
    units = np.zeros(last - first, UNIT)
    begin = log.segment_at(max(position, log.begin)).base
    for entry, payload in scan(log, begin):
        if entry.kind is EntryKind.VOID and entry.end > position:
            _fill_losses(units, key, first, entry, payload)
        if entry.kind is not EntryKind.DATA or entry.end <= position or queue_of(payload) != key:
            continue
        offset = queue_offset_of(payload)
        if offset < last:
            _fill(units, first, entry, payload, offset)
        if offset + entry.count >= last:
            break
    return units


def _fill(units: Units, first: int, entry: Entry, payload: memoryview, offset: int) -> None:
    records = Records(payload, record_starts(payload))
    found = np.empty(entry.count, UNIT)
    found["position"] = np.asarray(records.starts) + entry.payload_position
    found["size"] = record_sizes(records)
    found["tag"] = tag_hashes(records)
    skipped = max(first - offset, 0)
    at = max(offset - first, 0)
    room = units[at : at + max(entry.count - skipped, 0)]
    room[:] = found[skipped : skipped + len(room)]


def _fill_losses(
    units: Units, key: QueueKey, first: int, entry: Entry, payload: memoryview
) -> None:
    """Give lost offsets their places inside the fence, and no size."""
    taken = 0
    for loss in parse_losses(payload):
        if loss.is_delete:
            continue
        if (loss.topic, loss.queue_id) == key:
            for offset in range(max(loss.first, first), min(loss.end, first + len(units))):
                units["position"][offset - first] = (
                    entry.payload_position + taken + offset - loss.first
                )
        taken += loss.count
