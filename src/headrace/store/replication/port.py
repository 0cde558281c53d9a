"""The log as replication sees it: read whole stretches of it, and append them to another."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import CorruptLogError, HeadraceError, NotFoundError, StoreError
from headrace.store.entries import HEADER_SIZE, Entry, EntryKind, is_intact, parse_header
from headrace.store.index import WriteGroup
from headrace.store.log import GoneError
from headrace.store.recovery import Replay
from headrace.store.replication.following import Copied, Epoch, EpochTable, LogHead
from headrace.store.requests import AloneRequest

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.fileops import FileOps
    from headrace.store.log import CommitLog
    from headrace.store.writer import Writer


T = TypeVar("T")

#: The log was on disk up to here, and a CRC-32 of that.
_MARK = struct.Struct("<qI")


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
        """Say where the log begins and ends; in a copy, what readers do not yet see counts."""
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
        """Tell what there is of a copy, when nothing is being appended to it."""
        return Copied(self.epochs, self._log.end, self._log.synced)

    def begin_at(self, position: int) -> Future[None]:
        """Let an empty log begin at a position."""

        def begin() -> None:
            self._log.begin_at(position)
            self._catalog.adopt((), position)

        return self._alone(begin)

    def settle(self) -> Future[int]:
        """Put everything on disk that was asked for before; the future gives the log's end."""

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
        """Have the store refuse to write for its callers, or take that back."""
        self._writer.refusal = error

    def tell(self, on_publish: Callable[[int], None] | None) -> None:
        """Have a call made, on any thread, for each new end that readers see."""
        self._writer.on_publish = on_publish

    def close(self) -> None:
        """Let go of what copying holds open."""
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
            # Of a unit that has only begun is told again when it ends.
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


def read_mark(path: Path) -> int | None:
    """Read how far a copied log was on disk for certain; None when the log is no copy."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _MARK.size:
        return 0
    position, checksum = _MARK.unpack_from(content)
    return int(position) if zlib.crc32(content[:8]) == checksum else 0
