"""A look at every record of an entry: the entry's checksum says only that nothing changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import HeadraceError
from headrace.protocol.layout import locate, record_starts
from headrace.store.record import are_of_one_queue

if TYPE_CHECKING:
    from headrace.store.damage.inspection import Found
    from headrace.store.fileops import Buffer

__all__ = ["fault_of_records"]


def fault_of_records(payload: Buffer, entry: Found, *, sparse: bool = False) -> str | None:
    """Say what is wrong with the records of an entry; None when nothing is.

    Parameters
    ----------
    sparse
        Whether offsets may be left out, as in a compaction log.
    """
    try:
        starts = record_starts(payload)
        if len(starts) != entry.records:
            return f"holds {len(starts)} records, its header says {entry.records}"
        head = locate(payload, starts).head
    except HeadraceError as error:
        return f"holds malformed records ({error.message})"
    steps = np.diff(head["queue_offset"].astype(np.int64))
    if (steps < 1).any() or (not sparse and (steps != 1).any()):
        return "holds records whose offsets do not follow each other"
    if not sparse and (head["position"] != starts + entry.payload_position).any():
        return "holds records that name another place in the log"
    if not are_of_one_queue(payload, starts):
        return "holds records of several queues"
    return None
