"""The log as replication sees it: read whole stretches of it, and append them to another."""

from __future__ import annotations

import logging
import os
import random
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from headrace.errors import CorruptLogError, HeadraceError, NotFoundError, StoreError
from headrace.protocol.layout import queue_of, queue_offset_of, record_starts
from headrace.protocol.records import Records
from headrace.store.entries import HEADER_SIZE, Entry, EntryKind, is_intact, parse_header
from headrace.store.fileops import FileOps, replace_file
from headrace.store.index import IndexView, WriteGroup
from headrace.store.log import CommitLog, GoneError
from headrace.store.recovery import Replay
from headrace.store.replication.following import Copied, Epoch, EpochTable, LogHead
from headrace.store.requests import AloneRequest

if TYPE_CHECKING:
    from headrace.store.catalog import LogKey, QueueCatalog, QueueLogs
    from headrace.store.compaction import QueueLog
    from headrace.store.maintenance import Upkeep
    from headrace.store.writer import Writer


# Rebuilding compaction logs in a copy whose commit log does not begin at the beginning.
#
# What the commit log no longer has comes from the primary, record by record: from offset 0 to the
# first offset that the own commit log has.  Then the queue is compacted once, with everything that
# came meanwhile.  A journal says how far each queue is, so that a killed rebuild goes on.

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
        #: Nobody knows what was rebuilt: then no log is trusted to be whole.
        self._doubtful = entries is None
        self._entries = {each.key: each for each in entries or ()}

    def attach(self, upkeep: Upkeep) -> None:
        """Take over reput and compactions. Caller: the opening of the store."""
        self._upkeep = upkeep
        for entry in self.pending():
            upkeep.compactor.pause(entry.key)

    def pause(self, key: LogKey) -> bool:
        """Keep a queue from being compacted; return False while it is being compacted just now."""
        return self._upkeep.compactor.pause(key)

    def resume(self, key: LogKey) -> None:
        """Allow a queue to be compacted again."""
        self._upkeep.compactor.resume(key)

    def birth(self, topic: str, queue_id: int) -> int:
        """Log position of a queue's first entry: it names this life of the queue."""
        return self._catalog.view((topic, queue_id)).birth

    def holds(self, view: IndexView, log: QueueLog) -> bool:
        """Return whether nothing may be appended yet, as what comes before it is still lacking."""
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
        """Return the queues with something to be done; their rebuilds begin here."""
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
        """Return the rebuilds that have begun and not ended."""
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
        """Return whether a queue lacks something that readers must not miss; any thread may ask."""
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


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """Bytes of one segment, entries end to end; the last may be cut off."""

    #: First position of the segment.
    base: int
    position: int
    content: memoryview
    #: One past the last byte that readers of the log see.
    end: int


class LogPort:
    """What replication does with a store; any thread may call."""

    def __init__(
        self,
        mark: Path,
        log: CommitLog,
        catalog: QueueCatalog,
        writer: Writer,
        ops: FileOps,
        *,
        unit_marks: bool,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._writer = writer
        self._ops = ops
        self._replay = Replay(log, catalog, unit_marks)
        self._mark = _SyncMark(mark, ops)

    @property
    def epochs(self) -> EpochTable:
        """Who wrote which part of the log."""
        return self._catalog.epochs

    @property
    def end(self) -> int:
        """One past the last byte of the log that readers see."""
        return self._catalog.position

    def head(self, log: str = "") -> LogHead:
        """Return where the log begins and ends, in a copy with what readers do not see yet."""
        newest = self._log.segments[-1].base
        end = max(self._log.end, self._catalog.position) if self.refused else self.end
        return LogHead(log, self.epochs, self._log.begin, end, min(newest, end))

    def read(self, position: int, max_bytes: int) -> SegmentBytes:
        """Return what lies behind a position, nothing at the end; who copies it checks it.

        Raises
        ------
        NotFoundError
            The log does not hold the position.
        """
        end = self.end
        if not self._log.begin <= position <= end:
            raise NotFoundError(
                f"the log holds positions {self._log.begin} to before {end}, not {position}"
            )
        try:
            segment = self._log.segment_at(position)
            stop = min(segment.end, end, position + max_bytes)
            if stop <= position:
                return SegmentBytes(segment.base, position, memoryview(b""), end)
            return SegmentBytes(segment.base, position, self._log.view(position, stop), end)
        except GoneError:
            raise NotFoundError(f"position {position} of the log was deleted just now") from None

    def copy(
        self, base: int, position: int, content: memoryview, *, sync: bool = True
    ) -> Future[Copied]:
        """Append bytes of another copy of this log, up to the last whole entry among them.

        Every entry's checksum is checked first.  Readers see a unit only with its end.

        Raises
        ------
        CorruptLogError
            Through the future: an entry is damaged, or does not fit; names file and offset.
        StoreError
            Through the future: nothing was kept, but for whole units before the failure.
        """
        return self._alone(lambda: self._copy(base, position, content, sync=sync))

    def kept(self) -> Copied:
        """Return what there is of a copy, when nothing is being appended to it."""
        return Copied(self.epochs, self._log.end, self._log.synced)

    def begin_at(self, position: int) -> Future[None]:
        """Make an empty log begin at a position."""

        def begin() -> None:
            self._log.begin_at(position)
            self._catalog.adopt((), position)

        return self._alone(begin)

    def settle(self) -> Future[int]:
        """Put everything on disk that was asked for before; the future holds the log's end."""

        def settle() -> int:
            self._writer.sync()
            return self._log.end

        return self._alone(settle)

    def open_epoch(self, number: int) -> Future[Epoch]:
        """Begin an epoch of which this log is the primary; an unfinished unit is cut."""
        return self._alone(lambda: self._open_epoch(number))

    @property
    def refused(self) -> bool:
        """Whether the store takes nothing but copies."""
        return self._writer.refusal is not None

    @property
    def is_copy(self) -> bool:
        """Whether the log is the copy of another, and has not become a primary since."""
        return self._mark.exists or self.refused

    def refuse(self, error: HeadraceError | None) -> None:
        """Make the store refuse to write for its callers, or take that back."""
        self._writer.refusal = error

    def tell(self, on_publish: Callable[[int], None] | None) -> None:
        """Call a function, on any thread, for each new end that readers see."""
        self._writer.on_publish = on_publish

    def close(self) -> None:
        """Release what copying holds open."""
        self._mark.close()

    def _alone(self, work: Callable[[], T]) -> Future[T]:
        request = AloneRequest(work)
        self._writer.submit(request)
        return request.future

    # Everything below runs on the writer's thread.

    def _copy(self, base: int, position: int, content: memoryview, *, sync: bool) -> Copied:
        log = self._log
        if position != log.end:
            raise StoreError(f"bytes of position {position} do not follow the log's end {log.end}")
        entries = list(_checked(base, position, content))
        if not entries:
            return Copied(self.epochs, log.end, log.synced)
        begin = self._catalog.position
        self._mark.write(log.synced, first=True)
        try:
            log.copy(base, content[: entries[-1][0].end - position])
            if sync:
                self._writer.sync()
            self._writer.saving.before_change()
            for entry, payload in entries:
                self._replay.handle(entry, payload)
        except Exception as error:
            group = WriteGroup(self._catalog.position, 0, self._replay.reset())
            raise self._writer.undo(group, error) from error
        self._mark.write(log.synced)
        self._count(begin, sum(entry.count for entry, _ in entries if entry.kind is EntryKind.DATA))
        return Copied(self.epochs, log.end, log.synced)

    def _count(self, begin: int, records: int) -> None:
        writer, replay = self._writer, self._replay
        writer.saving.dropped += replay.dropped
        replay.dropped = []
        writer.last_timestamp = max(writer.last_timestamp, replay.timestamp)
        writer.counters.groups += 1
        writer.counters.records += records
        end = self._catalog.position
        writer.counters.bytes += end - begin
        if end > begin:
            if writer.on_publish is not None:
                writer.on_publish(end)
            writer.tell(sorted(replay.arrived))
            # A unit that has only begun is told again when it ends.
            replay.arrived = replay.touched()

    def _open_epoch(self, number: int) -> Epoch:
        log, catalog = self._log, self._catalog
        catalog.retract(self._replay.reset())
        if log.end != catalog.position:
            log.cut(catalog.position)
        self._writer.sync()
        # From here on the log is this broker's own: what it says to be on disk is.
        self._mark.remove()
        group = WriteGroup(log.end, 0)
        try:
            # The STATE of a segment that begins here is this epoch's, too.
            epoch = Epoch(number, log.end, random.SystemRandom().getrandbits(64))
            table = catalog.epochs.opened(epoch)
            log.place(len(table.pack()))
            log.add(EntryKind.EPOCH, table.pack())
            self._writer.sync()
        except Exception as error:
            raise self._writer.undo(group, error) from error
        catalog.epochs = table
        catalog.publish((), log.end)
        if self._writer.on_publish is not None:
            self._writer.on_publish(log.end)
        return epoch


def _checked(base: int, position: int, content: memoryview) -> Iterator[tuple[Entry, memoryview]]:
    """Split bytes into whole entries, each of them intact."""
    at = 0
    while at < len(content):
        entry = parse_header(content, at, position + at)
        if entry is None:
            if len(content) - at < HEADER_SIZE:
                return
            raise _damaged(base, position + at, "has no header")
        end = entry.end - position
        if end > len(content):
            return
        if not is_intact(entry, content, at):
            raise _damaged(base, position + at, "does not match its checksum")
        yield entry, content[at + HEADER_SIZE : end]
        at = end


def _damaged(base: int, position: int, what: str) -> CorruptLogError:
    return CorruptLogError(
        f"the primary's segment {base:020d}.log: the entry at byte {position - base} (position "
        f"{position} of the log) arrived damaged: it {what}",
        hint="nothing of it was copied; run `headrace store verify` on the primary's data folder",
    )


class _SyncMark:
    """A file that says how far a copied log was on disk for certain.

    It is written without a sync: a power cut may bring an older one back, which is as true.
    """

    def __init__(self, path: Path, ops: FileOps) -> None:
        self._path = path
        self._ops = ops
        self._fd = -1
        self._position = -1
        self.exists = path.exists()

    def write(self, position: int, *, first: bool = False) -> None:
        if first and self._fd >= 0:
            return
        if self._fd < 0:
            self._fd = self._ops.open(self._path, os.O_WRONLY | os.O_CREAT)
        if position != self._position:
            content = struct.pack("<q", position)
            self._ops.pwritev(self._fd, [content + struct.pack("<I", zlib.crc32(content))], 0)
            self._position = position
        if first:
            self.exists = True
            self._ops.fdatasync(self._fd)
            self._ops.sync_directory(self._path.parent)

    def remove(self) -> None:
        self.close()
        self.exists = False
        if self._path.exists():
            self._ops.unlink(self._path)
            self._ops.sync_directory(self._path.parent)

    def close(self) -> None:
        if self._fd >= 0:
            self._ops.close(self._fd)
        self._fd, self._position = -1, -1
