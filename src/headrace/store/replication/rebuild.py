"""Rebuilding compaction logs in a copy whose commit log does not begin at the beginning.

What the commit log no longer has comes from the primary, record by record: from offset 0 to the
first offset that the own commit log has.  Then the queue is compacted once, with everything that
came meanwhile.  A journal says how far each queue is, so that a killed rebuild goes on.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from headrace.errors import CorruptLogError
from headrace.protocol.layout import record_starts
from headrace.protocol.records import Records
from headrace.store.fileops import FileOps, replace_file
from headrace.store.log import GoneError
from headrace.store.reading import queue_of, queue_offset_of

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.compaction import QueueLog
    from headrace.store.index import IndexView
    from headrace.store.maintenance import Upkeep
    from headrace.store.queue_logs import LogKey, QueueLogs


logger = logging.getLogger(__name__)


class RebuildStage(StrEnum):
    """How far the rebuild of a queue is."""

    #: Records come from the primary.
    PULLING = "pulling"
    #: All have come; the forced compaction is to be done.
    COMPACTING = "compacting"
    DONE = "done"


class QueueRebuild(msgspec.Struct, frozen=True, kw_only=True):
    """The rebuild of one queue."""

    topic: str
    queue_id: int
    birth: int
    #: First offset that the own commit log has, as it was when the rebuild began.
    upto: int
    stage: RebuildStage = RebuildStage.PULLING
    #: Name of this try; the primary keeps deletes for as long as it knows it.
    session: str = ""
    #: Offset to pull from next.
    next_offset: int = 0
    #: Records that came.
    records: int = 0

    @property
    def key(self) -> LogKey:
        """Topic, queue id and birth."""
        return self.topic, self.queue_id, self.birth


def read_journal(path: Path, ops: FileOps) -> list[QueueRebuild] | None:
    """Read a journal, empty when there is none; None when it is damaged."""
    try:
        content = ops.read_bytes(path)
        if zlib.crc32(content[9:]) == int(content[:8], 16):
            return msgspec.json.decode(content[9:], type=list[QueueRebuild])
    except FileNotFoundError:
        return []
    except (ValueError, msgspec.MsgspecError):
        pass
    logger.warning("%s is damaged: compaction logs are rebuilt from the beginning", path)
    return None


class Rebuilds:
    """Which queues of a copy lack old records, and what is done about it.

    Caller of what changes: the follower's task.  :meth:`holds` may be asked by any thread.

    Parameters
    ----------
    path
        The journal.
    is_copy
        Whether the store is the copy of another: only then something can be lacking.
    """

    def __init__(
        self,
        path: Path,
        catalog: QueueCatalog,
        logs: QueueLogs,
        ops: FileOps,
        is_copy: Callable[[], bool],
    ) -> None:
        self._path = path
        self._catalog = catalog
        self._logs = logs
        self._ops = ops
        self._is_copy = is_copy
        self._lock = threading.Lock()
        entries = read_journal(path, ops)
        #: What was rebuilt, nobody knows: then no log is trusted to be whole.
        self._doubtful = entries is None
        self._entries = {each.key: each for each in entries or ()}

    def attach(self, upkeep: Upkeep) -> None:
        """Take over reput and compactions. Caller: the opening of the store."""
        self._upkeep = upkeep
        for entry in self.pending():
            upkeep.compactor.pause(entry.key)

    def pause(self, key: LogKey) -> bool:
        """Keep a queue from being compacted; False while it is being compacted just now."""
        return self._upkeep.compactor.pause(key)

    def resume(self, key: LogKey) -> None:
        """Let a queue be compacted again."""
        self._upkeep.compactor.resume(key)

    def birth(self, topic: str, queue_id: int) -> int:
        """Log position of a queue's first entry: it names this life of the queue."""
        return self._catalog.view((topic, queue_id)).birth

    def holds(self, view: IndexView, log: QueueLog) -> bool:
        """Whether nothing may be appended yet, as what comes before it is still lacking."""
        if not self._is_copy():
            return False
        entry = self._entries.get((*view.key, view.birth))
        if entry is None or (
            entry.stage is RebuildStage.DONE and entry.records and not log.next_offset
        ):
            # Never fed, or emptied since: the commit log was cut below what had been compacted.
            lacking = log.next_offset == 0 or (entry is None and self._doubtful)
            return lacking and view.min_offset > 0
        return entry.stage is RebuildStage.PULLING

    def wanted(self) -> list[QueueRebuild]:
        """Name the queues with something to be done; their rebuilds begin here."""
        if not self._is_copy():
            return []
        views = (view for view in self._catalog.views() if view.compacted)
        return [entry for view in views if (entry := self._entry(view)) is not None]

    def _entry(self, view: IndexView) -> QueueRebuild | None:
        try:
            log = self._logs.of(view)
        except GoneError:
            return None
        key = (*view.key, view.birth)
        entry = self._entries.get(key)
        if self.holds(view, log) and (entry is None or entry.stage is RebuildStage.DONE):
            entry = QueueRebuild(topic=key[0], queue_id=key[1], birth=key[2], upto=view.min_offset)
            self._upkeep.compactor.pause(key)
            self._save(entry)
        return None if entry is None or entry.stage is RebuildStage.DONE else entry

    def pending(self) -> list[QueueRebuild]:
        """The rebuilds that have begun and not ended."""
        return [
            each for each in list(self._entries.values()) if each.stage is not RebuildStage.DONE
        ]

    def begin(self, entry: QueueRebuild, session: str) -> QueueRebuild:
        """Begin from offset 0 in a new session; what came in an older one is thrown away."""
        with self._upkeep.reput.turn:
            self._log(entry).truncate(0)
        return self._save(msgspec.structs.replace(entry, session=session, next_offset=0, records=0))

    def append(
        self, entry: QueueRebuild, block: bytes | memoryview, next_offset: int
    ) -> QueueRebuild:
        """Append records that came from the primary, all of them on disk on return.

        Raises
        ------
        CorruptLogError
            They are of another queue.
        """
        records, offsets = _parsed(entry, block)
        with self._upkeep.reput.turn:
            log = self._log(entry)
            # What came again, after a crash before the journal was written, is there already.
            wanted = (offsets >= log.next_offset) & (offsets < entry.upto)
            chosen = _chosen(records, wanted)
            if len(chosen.starts):
                log.append(chosen)
                log.sync()
        count = entry.records + int(wanted.sum())
        changed = msgspec.structs.replace(entry, next_offset=next_offset, records=count)
        return self._save(changed)

    def pulled(self, entry: QueueRebuild) -> QueueRebuild:
        """Note that everything came: the queue takes what its own commit log has."""
        return self._save(msgspec.structs.replace(entry, stage=RebuildStage.COMPACTING))

    def compact(self, entry: QueueRebuild) -> QueueRebuild:
        """Compact the queue with all that it has now, and end its rebuild."""
        self._upkeep.compactor.resume(entry.key)
        self._upkeep.compact_queue(self._view(entry))
        return self._save(msgspec.structs.replace(entry, stage=RebuildStage.DONE))

    def drop(self, entry: QueueRebuild) -> None:
        """Forget the rebuild of a queue that is gone."""
        with self._lock:
            self._entries.pop(entry.key, None)
            self._write()
        self._upkeep.compactor.resume(entry.key)

    def abandon(self) -> None:
        """Leave out what is still lacking: the copy becomes a primary as it is."""
        for entry in self.pending():
            self.drop(entry)

    def is_rebuilding(self, topic: str, queue_id: int) -> bool:
        """Whether a queue lacks something that readers must not miss; any thread may ask."""
        return any(
            (each.topic, each.queue_id) == (topic, queue_id) and each.stage is RebuildStage.PULLING
            for each in list(self._entries.values())
        )

    def _view(self, entry: QueueRebuild) -> IndexView:
        view = self._catalog.view((entry.topic, entry.queue_id))
        if view.birth != entry.birth:
            raise GoneError(f"queue {entry.queue_id} of topic {entry.topic!r} is another one now")
        return view

    def _log(self, entry: QueueRebuild) -> QueueLog:
        return self._logs.of(self._view(entry))

    def _save(self, entry: QueueRebuild) -> QueueRebuild:
        with self._lock:
            self._entries[entry.key] = entry
            self._write()
        return entry

    def _write(self) -> None:
        body = msgspec.json.encode(list(self._entries.values()))
        replace_file(self._ops, self._path, b"%08x\n%s" % (zlib.crc32(body), body))


def _parsed(
    entry: QueueRebuild, block: bytes | memoryview
) -> tuple[Records, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    view = memoryview(block)
    records = Records(view, record_starts(view))
    if len(records.starts) and queue_of(view) != (entry.topic, entry.queue_id):
        raise CorruptLogError(
            f"the primary sent records of queue {queue_of(view)} for queue "
            f"{entry.queue_id} of topic {entry.topic!r}"
        )
    offsets = [queue_offset_of(view[start:]) for start in records.starts.tolist()]
    return records, np.array(offsets, np.int64)


def _chosen(records: Records, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Records:
    """Keep some of the records, end to end."""
    if wanted.all():
        return records
    view = memoryview(records.data)
    ends = [*records.starts.tolist()[1:], len(view)]
    kept = [
        bytes(view[start:end])
        for start, end, keep in zip(records.starts.tolist(), ends, wanted.tolist(), strict=True)
        if keep
    ]
    block = bytearray().join(kept)
    return Records(block, record_starts(block))
