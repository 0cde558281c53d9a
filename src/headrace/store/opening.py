"""Opening a store: its parts, recovered and put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.protocol.layout import record_starts
from headrace.protocol.records import Records, record_sizes
from headrace.protocol.stamps import tag_hashes
from headrace.store.catalog import QueueCatalog
from headrace.store.checkpoint import Checkpointer, Saving
from headrace.store.entries import Entry, EntryKind, parse_losses, scan
from headrace.store.index import UNIT, Units
from headrace.store.log import CommitLog
from headrace.store.maintenance import make_clock
from headrace.store.queue_logs import QueueLogs, remove_strangers
from headrace.store.reading import queue_of, queue_offset_of
from headrace.store.recovery import RecoveryReport, recover
from headrace.store.replication.port import read_mark
from headrace.store.requests import discard, keep_name
from headrace.store.staging import Staging
from headrace.store.writer import OnAppend, Writer

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps
    from headrace.store.index import QueueKey
    from headrace.store.settings import StoreSettings


# Making index units again from the log, when an index file is damaged or lost.


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


COPIED = "copied"
"""Name of the file that makes a store the copy of another."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of an open store; the writer has yet to be started."""

    log: CommitLog
    catalog: QueueCatalog
    staging: Staging
    checkpointer: Checkpointer
    writer: Writer
    queue_logs: QueueLogs
    recovery: RecoveryReport


def open_parts(
    path: Path,
    settings: StoreSettings,
    ops: FileOps,
    *,
    on_append: OnAppend | None,
    clock: Callable[[], int] | None,
) -> StoreParts:
    """Recover what a folder holds. Caller: has the folder's lock."""
    for name in ("log", "index", "staging"):
        ops.make_directory(path / name)
    discard(path / "log", ops)
    segment_size, reserve = settings.segment_size, settings.min_free_space
    log = CommitLog(path / "log", ops, segment_size=segment_size, min_free_space=reserve)
    catalog = QueueCatalog(path / "index", settings.index_file_units, partial(remake_units, log))
    file_units, marks = settings.index_file_units, settings.unit_marks
    checkpoint = path / "checkpoint"
    try:
        keep_name(log, ops)
        report = recover(
            log,
            catalog,
            checkpoint,
            ops,
            file_units=file_units,
            unit_marks=marks,
            certain_to=read_mark(path / COPIED),
        )
        staging = Staging(path / "staging", ops, settings)
    except BaseException:
        log.close()
        raise
    for index in remove_strangers(catalog.folder, catalog.indexes(), ops):
        if index.files.floor:
            index.files.remove_expired()
    store_clock = make_clock(path, clock)
    queue_logs = QueueLogs(path / "compaction", settings.compaction, ops, store_clock)
    try:
        queue_logs.begin(catalog)
    except BaseException:
        log.close()
        raise
    checkpointer = Checkpointer(checkpoint, ops, -1 if report.rebuilt else report.checked_from)
    writer = Writer(
        log,
        catalog,
        staging,
        Saving(log, catalog, checkpointer, settings),
        settings=settings,
        ops=ops,
        clock=store_clock.now,
        on_append=on_append,
    )
    writer.last_timestamp = report.timestamp
    checkpointer.on_failure = writer.fail
    return StoreParts(log, catalog, staging, checkpointer, writer, queue_logs, report)
