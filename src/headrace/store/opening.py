"""Opening a store: its parts, recovered and put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.beside import discard, keep_name
from headrace.store.catalog import Catalog
from headrace.store.checkpoint import Checkpointer
from headrace.store.index_repair import remake_units
from headrace.store.log import CommitLog
from headrace.store.queue_logs import QueueLogs
from headrace.store.recovery import RecoveryReport, recover
from headrace.store.replication.port import read_mark
from headrace.store.saving import Saving
from headrace.store.staging import Staging
from headrace.store.strangers import remove_strangers
from headrace.store.upkeep import make_clock
from headrace.store.writer import OnAppend, Writer

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps
    from headrace.store.settings import StoreSettings

__all__ = ["COPIED", "StoreParts", "open_parts"]

COPIED = "copied"
"""Name of the file that makes a store the copy of another."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of an open store; the writer has yet to be started."""

    log: CommitLog
    catalog: Catalog
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
    catalog = Catalog(path / "index", settings.index_file_units, partial(remake_units, log))
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
