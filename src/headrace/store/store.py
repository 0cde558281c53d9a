"""The message store: one folder, one commit log, an index per queue."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.errors import InvalidParameterError, StoreLockedError
from headrace.protocol.layout import check_sizes, queue_of
from headrace.store import requests
from headrace.store.entries import QueueAppend, QueueKey, Verification
from headrace.store.fileops import Buffer, FileOps
from headrace.store.keys import KeyIndex
from headrace.store.maintenance import (
    COPIED,
    ExpiryReport,
    Maintenance,
    StoreParts,
    Upkeep,
    open_parts,
)
from headrace.store.reading import Bounds, Cut, OldParts, Reader, ReadResult
from headrace.store.replication.port import LogPort, Rebuilds
from headrace.store.reput import CompactorStatistics, Reput, ReputStatistics
from headrace.store.settings import StoreSettings

if TYPE_CHECKING:
    from headrace.protocol.transactions import StagedBatch
    from headrace.store.compaction import CompactionReport
    from headrace.store.recovery import RecoveryReport
    from headrace.store.staging import StageKey
    from headrace.store.writer import OnAppend


# The lock that keeps a second process out of a store's folder.


class FolderLock:
    """A lock on a folder, held by this process until it is released or the process ends.

    Raises
    ------
    StoreLockedError
        When another process (or another store of this one) holds it; names its pid.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLockedError(
                f"the store in {folder} is open in process {holder}",
                hint="stop that process, or use another data folder",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._fd)


# What a store says of itself.


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What a store holds and has done since it was opened."""

    #: Positions of the log's first byte, of the end that readers see, and of what is on disk.
    begin: int
    end: int
    synced: int
    segments: int
    queues: int
    #: Groups written, syncs, committed units, records and bytes appended since the open.
    groups: int
    syncs: int
    units: int
    appended_records: int
    appended_bytes: int
    staged_parts: int
    staged_bytes: int
    #: Position of the last checkpoint, -1 for none: recovery would begin there.
    checkpoint: int
    #: Why the store takes no more, None while it works.
    failure: str | None
    #: What opening the store found.
    recovery: RecoveryReport
    #: How far the logs of compacted topics are, and what was compacted.
    reput: ReputStatistics
    compaction: CompactorStatistics


class MessageStore:
    """Messages of all topics on one disk.

    Any thread may call any method.  Appends are answered through futures, which one writer
    thread resolves.

    Examples
    --------
    >>> import tempfile
    >>> from headrace.protocol.records import encode_records
    >>> with MessageStore.open(Path(tempfile.mkdtemp())) as store:
    ...     records = encode_records("lines", 0, [b"to be", b"or not"], None, 0)
    ...     [result] = store.append([QueueAppend("lines", 0, records)]).result()
    ...     found = store.read("lines", 0, 0, max_count=10, max_bytes=1000)
    ...     result.first_offset, found.count, found.next_offset
    (0, 2, 2)
    """

    def __init__(
        self, path: Path, lock: FolderLock, parts: StoreParts, settings: StoreSettings, ops: FileOps
    ) -> None:
        self._lock = lock
        self._log = parts.log
        self._catalog = parts.catalog
        self._staging = parts.staging
        self._checkpointer = parts.checkpointer
        self._writer = parts.writer
        self._beside = requests.Beside(
            path / "log", parts.staging, parts.writer, settings=settings, ops=ops
        )
        self._recovery = parts.recovery
        self._settings = settings
        self._queue_logs = parts.queue_logs
        verification = Verification(parts.log, parts.recovery.checked_from)
        old_parts = OldParts(parts.queue_logs)
        self._reader = Reader(parts.log, parts.catalog, verification, old_parts)
        slices, handed_on = self._reader.slices, parts.recovery.handed_on
        #: The log as followers and their primary need it.
        self.replication = LogPort(
            path / COPIED,
            parts.log,
            parts.catalog,
            parts.writer,
            ops,
            unit_marks=settings.unit_marks,
        )
        #: What a copy lacks of compacted topics, and how it comes back.
        self.rebuilds = Rebuilds(
            path / "rebuild",
            parts.catalog,
            parts.queue_logs,
            ops,
            lambda: self.replication.is_copy,
        )
        held = self.rebuilds.holds
        reput = Reput(
            parts.log,
            parts.catalog,
            parts.queue_logs,
            slices,
            handed_on,
            held,
            on_failure=parts.writer.fail,
        )
        self._upkeep = Upkeep(path, parts, reput, settings, ops)
        self.rebuilds.attach(self._upkeep)
        #: Finds messages by their keys.
        self.keys = KeyIndex(path / "keys", parts.log, parts.catalog, self._reader, ops)
        interval = settings.maintenance_interval.total_seconds()
        self._indexing = Maintenance(
            self.keys.keep_up, interval, name="headrace-keys", on_failure=parts.writer.fail
        )

    @classmethod
    def open(
        cls,
        path: Path,
        settings: StoreSettings | None = None,
        on_append: OnAppend | None = None,
        *,
        ops: FileOps | None = None,
        clock: Callable[[], int] | None = None,
    ) -> Self:
        """Open the store in a folder, or make one; recovers what a crash left behind.

        Parameters
        ----------
        path
            The folder; made when missing.
        on_append
            Called on the writer thread with topic and queue id of each queue that has new
            messages, after readers can see them.  It must be quick.
        ops, clock
            File operations, and the time in ms since 1970: for tests.

        Raises
        ------
        StoreLockedError
            Another process has the store open.
        CorruptLogError
            Bytes that were once on disk are damaged; nothing was changed.
        """
        settings = settings or StoreSettings()
        ops = ops or FileOps()
        ops.make_directory(path)
        lock = FolderLock(path)
        try:
            parts = open_parts(path, settings, ops, on_append=on_append, clock=clock)
        except BaseException:
            lock.release()
            raise
        parts.writer.start()
        return cls(path, lock, parts, settings, ops)

    @property
    def store_host(self) -> tuple[str, int]:
        """Host and port that new records name as the place where they are stored."""
        return self._writer.store_host

    @store_host.setter
    def store_host(self, host: tuple[str, int]) -> None:
        self._writer.store_host = host

    def append(
        self, appends: Sequence[QueueAppend], *, checked: bool = False
    ) -> Future[list[requests.AppendResult]]:
        """Append records to queues; a queue that does not exist is made.

        The records of one :class:`QueueAppend` survive a crash together or not at all; all of
        them become visible together.  The records are stamped in place, and must be left alone
        until the future is done.  With ``checked`` each one went through :meth:`check` before.

        Raises
        ------
        MessageTooLargeError
            A record is larger than the settings allow.
        InvalidParameterError
            Records are not of the queue that is named.
        StoreFullError, StoreFailedError
            Through the future: nothing of the request was kept.
        """
        if not checked:
            for append in appends:
                self.check(append)
        request = requests.AppendRequest(list(appends), sum(append.size for append in appends))
        self._writer.submit(request)
        return request.future

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 256 * 1024,
        tags: frozenset[int] | None = None,
    ) -> ReadResult:
        """Read messages from an offset on, as slices of the log.

        At least one message is returned when there is one, however large.  With ``tags`` only
        messages whose tag has one of these hashes are returned; ``next_offset`` is behind the last
        one looked at.  The slices stay valid as long as they are held.

        Raises
        ------
        CorruptLogError
            The bytes do not match their checksum; names file and offset.
        """
        return self._reader.read((topic, queue_id), offset, max_count, max_bytes, tags)

    def read_at(self, position: int) -> bytes:
        """Read the record that begins at a position of the log.

        Raises
        ------
        NotFoundError
            No visible record begins there.
        """
        return self._reader.read_at(position)

    def bounds(self, topic: str, queue_id: int) -> Bounds:
        """Return the first offset of a queue and one past its last: zeros if it is unknown."""
        return self._reader.bounds((topic, queue_id))

    def cut(self, begins: Mapping[QueueKey, int], limit: int = 0, max_bytes: int = 0) -> Cut:
        """Cut queues at one position of the log, so that all their ends fit together.

        Parameters
        ----------
        begins
            Next offset to read of each queue.
        limit
            At most so many messages lie between begins and ends; 0 is no limit.
        max_bytes
            At most so many bytes of messages do, or a single message; 0 is no limit.
        """
        return self._reader.cut(begins, limit, max_bytes)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored, ms since 1970.

        Raises
        ------
        NotFoundError
            The queue does not hold the offset.
        """
        return self._reader.store_time((topic, queue_id), offset)

    def offset_at(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at a time (ms since 1970) or later.

        Past the last message it is the queue's end.  With ``upper`` it is the last message
        stored at that time or before, and the first one if there is none.
        """
        return self._reader.offset_at((topic, queue_id), timestamp, upper=upper)

    def stage(self, key: StageKey, chunk: int, body: Buffer) -> None:
        """Keep one chunk of an attempt's output for a later commit, out of sight.

        Staging a chunk again changes nothing.  The body is made by
        :func:`~headrace.protocol.transactions.encode_sections`.

        Raises
        ------
        ProtocolError
            The body does not hold what it says.
        InvalidParameterError
            The chunk was staged before with other content.
        StoreFullError, StoreFailedError
            Nothing of the chunk was kept.
        """
        self._staging.stage(key, chunk, body)

    def staged(self, key: StageKey) -> tuple[int, int]:
        """Count the chunks and records of a staged part; (0, 0) if there is none."""
        return self._staging.staged(key)

    def staged_sums(self) -> dict[str, tuple[int, int]]:
        """Count the parts that jobs have staged, and their bytes; of those that have any."""
        return self._staging.sums()

    def waiting(self, job: str) -> list[StagedBatch]:
        """Sum up what a job has staged, by epoch and batch."""
        return self._staging.waiting(job)

    def commit_unit(
        self, keys: Sequence[StageKey], extra: Sequence[QueueAppend] = ()
    ) -> Future[requests.UnitResult]:
        """Append staged parts, then some more records, as one unit.

        The unit is one stretch of the log, on disk when the future is done, in every mode.
        Readers see all of it or nothing, and so does recovery.  The staged parts stay until
        they are dropped.

        Raises
        ------
        MessageTooLargeError, InvalidParameterError
            As :meth:`append`.
        StagedPartMissingError
            Through the future: a part is not here, or not whole.
        StoreFullError, StoreFailedError
            Through the future: nothing of the request was kept.
        """
        for append in extra:
            self.check(append)
        request = requests.UnitRequest(list(keys), list(extra))
        if self._beside.takes(request):
            self._beside.submit(request)
        else:
            self._writer.submit(request)
        return request.future

    def drop_staged(self, job: str, keep: Callable[[StageKey], bool]) -> int:
        """Remove the staged parts of a job but those to keep, and return how many were removed."""
        return self._staging.drop(job, keep)

    def delete_topic(self, topic: str) -> Future[int]:
        """Delete a topic's queues; the future holds how many there were.

        Its messages stay in the log, out of reach.  A topic of the same name starts at 0.
        """
        request = requests.DropRequest(topic)
        self._writer.submit(request)
        return request.future

    def expire(self) -> ExpiryReport:
        """Delete what has expired by now, without waiting for the maintenance thread.

        Raises
        ------
        OSError
            When a file cannot be deleted; it is tried again later.
        """
        return self._upkeep.expire()

    def hold(self, keep_from: Callable[[], int | None]) -> None:
        """Make retention ask, too, for the lowest position to keep; None expresses no wish.

        It is not asked when the disk is full beyond ``disk_watermark``.
        """
        self._upkeep.retention.wishes.append(keep_from)

    def compact_topic(self, topic: str) -> Future[None]:
        """Keep only the newest record of each key of a topic, from here on; may be repeated."""
        request = requests.CompactRequest(topic)
        self._writer.submit(request)
        return request.future

    def compacted_topics(self) -> list[str]:
        """Return the topics that are compacted, in order."""
        return sorted(self._catalog.compacted)

    def compact(self, topic: str | None = None, *, force: bool = False) -> list[CompactionReport]:
        """Compact now, without waiting until it pays: all compacted topics, or one.

        With ``force`` the newest records take part, too: their files are closed first.

        Raises
        ------
        StoreError, CorruptLogError
            A queue could not be compacted; readers see what they saw.
        """
        return self._upkeep.compact(topic, force=force)

    def queues(self) -> list[QueueKey]:
        """Return all queues that have had a message, in order."""
        return self._catalog.queues()

    def statistics(self) -> StoreStatistics:
        """Return what the store holds and has done."""
        counters, failure = self._writer.counters, self._writer.failure
        parts, staged_bytes = self._staging.statistics
        return StoreStatistics(
            begin=self._log.begin,
            end=self._catalog.position,
            synced=min(self._log.synced, self._catalog.position),
            segments=len(self._log.segments),
            queues=len(self._catalog.queues()),
            groups=counters.groups,
            syncs=counters.syncs,
            units=counters.units,
            appended_records=counters.records,
            appended_bytes=counters.bytes,
            staged_parts=parts,
            staged_bytes=staged_bytes,
            checkpoint=self._checkpointer.position,
            failure=None if failure is None else str(failure),
            recovery=self._recovery,
            reput=self._upkeep.reput.statistics(),
            compaction=self._upkeep.compactor.statistics(),
        )

    def close(self) -> None:
        """Write what waits, save a checkpoint, and release the folder.

        Slices that were read stay valid.  Closing again does nothing.
        """
        self.keys.close()
        self._indexing.close()
        self._upkeep.close()
        self._beside.close()
        if self._writer.close():
            self._checkpointer.close()
            self._queue_logs.close()
            self.replication.close()
            self._log.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def check(self, append: QueueAppend) -> None:
        """Check an append without doing it; raise as :meth:`append` does at once."""
        records = append.records
        if not len(records.starts):
            raise InvalidParameterError(f"no records for queue {append.key}")
        if queue_of(records.data) != append.key:
            raise InvalidParameterError(
                f"records of queue {queue_of(records.data)} were given for queue {append.key}"
            )
        check_sizes(records.starts, append.size, self._settings.max_message_size)
