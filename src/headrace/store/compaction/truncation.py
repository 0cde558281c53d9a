"""Truncation: the log as it was before an offset, in files of its own.

A file is never shortened in place: a reader may have it mapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.store.compaction.marking import Candidate
from headrace.store.compaction.rewriting import Outputs, Place
from headrace.store.compaction.view import Part, View

if TYPE_CHECKING:
    from headrace.store.compaction.log_files import LogFiles

__all__ = ["truncated"]


def truncated(files: LogFiles, offset: int, fresh: Part, place: Place) -> None:
    """Publish the view of a log that ends before an offset.

    Caller: has stopped appends and compactions.

    Parameters
    ----------
    fresh
        The active file to go on with.
    """
    view = files.view
    outputs = Outputs(place, lambda index: index["met"])
    try:
        kept = [part for part in view.closed if part.meta.last < offset]
        for part in view.parts:
            meta = part.meta
            if meta.first < offset and (part is view.active or meta.last >= offset):
                kept += outputs.rewrite((_before(part, offset),))
        clean_until = min(view.clean_until, offset)
        files.publish(lambda _: View(tuple(kept), fresh, offset, clean_until))
    except Exception:
        if not files.has_failed:
            outputs.discard()
        raise


def _before(part: Part, offset: int) -> Candidate:
    """Mark the records from an offset on."""
    candidate = Candidate(part)
    gone = np.zeros(part.meta.count, np.bool_)
    gone[part.file.row_of(part.meta, offset) :] = True
    candidate.drop(0, gone)
    return candidate
