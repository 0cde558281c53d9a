"""What callers ask of the writer, and what it answers."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import StoreError
from headrace.failpoints import failpoint
from headrace.protocol.records import record_sizes
from headrace.protocol.stamps import stamp_records
from headrace.store.entries import (
    HEADER_SIZE,
    NO_UNIT,
    UNTAGGED,
    EntryKind,
    LogState,
    QueueAppend,
    QueueKey,
    encode_state,
    encode_state_of_size,
    pack_header,
)
from headrace.store.fileops import Buffer, FileOps, require_space, write_all, write_error
from headrace.store.log import CommitLog, Segment
from headrace.store.staging import Piece, StageKey, Staging, UnitPlan
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where the records of one append went."""

    #: Queue offset of the first record.
    first_offset: int
    #: Log position of the first record.
    first_position: int
    #: Store time of all of them, ms since 1970.
    timestamp: int


@dataclass(frozen=True, slots=True)
class UnitResult:
    """Where a unit went."""

    #: One past the unit's last byte in the log.
    position: int
    #: Offset of the unit's first record in each queue.
    first_offsets: dict[QueueKey, int]


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Append to some queues."""

    appends: list[QueueAppend]
    size: int
    future: Future[list[AppendResult]] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class UnitRequest:
    """Commit staged parts and some more records as one unit."""

    keys: list[StageKey]
    extra: list[QueueAppend]
    size: int = 0
    future: Future[UnitResult] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class JoinRequest:
    """Make a unit that was written beside the log join it; None when it no longer fits."""

    unit: SideUnit
    size: int = 0
    future: Future[UnitResult | None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class DropRequest:
    """Delete a topic."""

    topic: str
    size: int = 0
    future: Future[int] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class AloneRequest:
    """Do some work on the writer's thread, between two groups."""

    work: Callable[[], Any]
    size: int = 0
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class CompactRequest:
    """Compact a topic from here on."""

    topic: str
    size: int = 0
    future: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class WakeRequest:
    """Make the writer look at what is due."""

    size: int = 0


@dataclass(slots=True, eq=False)
class StopRequest:
    """End the writer."""

    size: int = 0


Request = (
    AppendRequest
    | UnitRequest
    | JoinRequest
    | DropRequest
    | CompactRequest
    | AloneRequest
    | WakeRequest
    | StopRequest
)


# Units beside the log: a large unit is written where nobody waits for it, and joins the log whole.
#
# Appends wait while the writer has its turn, and a unit of hundreds of megabytes takes seconds to
# copy and to sync.  So it is written and synced as a file of its own, for a position a little
# beyond the log's end: appends go on, into the room before it.  Then, in one short turn, the log is
# filled up to there, and the file takes its name as the next segment.  Readers, recovery and
# followers see the same as ever: one stretch of the log, there as a whole or not at all.
#
# Where the room was too small, or another record came into one of the unit's queues, it is written
# anew; after two tries it is written in the writer's turn, as small ones are.

_NAME = "unit.beside"
#: So many bytes are written between two syncs: a sync of the log may wait for one of another file.
_SLICE_BYTES = 4 * 1024 * 1024
#: How much others may append meanwhile, as shares of the unit: a try for each.
_ROOMS = (1 / 8, 1 / 2)
#: What the STATE of its segment may grow by until it joins the log, bytes.
_STATE_GROWTH = 16 * 1024


def discard(folder: Path, ops: FileOps) -> None:
    """Remove what a process that died has left of a unit beside the log."""
    path = folder / _NAME
    if path.exists():
        ops.unlink(path)


def keep_name(log: CommitLog, ops: FileOps) -> None:
    """Put the newest segment's name on the disk, if it may have joined the log just before.

    One that was written beside the log begins with a large STATE; of others few do.
    """
    if log.state_bytes > _STATE_GROWTH:
        ops.sync_directory(log.folder)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a unit must follow, as it is now."""

    #: End of the log, and up to where it is on disk.
    end: int
    synced: int
    #: Store time of the records, ms since 1970.
    timestamp: int
    store_host: tuple[str, int]
    #: Bytes of a STATE entry's payload.
    state_size: int
    #: Offset of the next record, by queue.
    offsets: dict[QueueKey, int]


@dataclass(frozen=True, slots=True)
class _Laid:
    """The records of one entry, for the index of their queue."""

    key: QueueKey
    #: Of the entry.
    position: int
    #: Of the records, and their sizes and tag hashes.
    positions: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    tags: npt.NDArray[np.int32]


@dataclass(slots=True)
class SideUnit:
    """A unit in a segment that is not one yet: all but the STATE that begins it."""

    segment: Segment
    ops: FileOps
    outlook: Outlook
    state_size: int
    pieces: list[_Laid] = field(default_factory=list)
    records: int = 0
    #: Offset of the unit's first record in each queue.
    first_offsets: dict[QueueKey, int] = field(default_factory=dict)
    #: Offset of the next record in each.
    _next_offsets: dict[QueueKey, int] = field(default_factory=dict)
    _pending: list[Buffer] = field(default_factory=list)
    _end: int = 0

    def __post_init__(self) -> None:
        self.segment.size = HEADER_SIZE + self.state_size
        self._end = self.segment.end

    @property
    def unit(self) -> int:
        """Position of its BEGIN."""
        return self.segment.base + HEADER_SIZE + self.state_size

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that were added since the last flush."""
        return self._end - self.segment.end

    def add_piece(self, piece: Piece) -> None:
        """Stamp records and add them as an entry."""
        key, records = piece.key, piece.records
        count, at = len(records.starts), self._end + HEADER_SIZE
        offset = self._next_offsets.setdefault(key, self.outlook.offsets[key])
        stamp_records(records, offset, at, self.outlook.timestamp, self.outlook.store_host)
        self.first_offsets.setdefault(key, offset)
        self._next_offsets[key] = offset + count
        positions, sizes = np.add(records.starts, at), record_sizes(records)
        self.pieces.append(_Laid(key, self._end, positions, sizes, piece.tags))
        self.records += count
        self.add(EntryKind.DATA, records.data, count, 0 if piece.tags.any() else UNTAGGED)

    def add(self, kind: EntryKind, payload: Buffer = b"", count: int = 0, flags: int = 0) -> None:
        """Add an entry, to be written by the next flush."""
        unit = NO_UNIT if kind is EntryKind.BEGIN else self.unit
        synced = self.outlook.synced
        self._pending += [
            pack_header(kind, self._end, payload, count, synced=synced, unit=unit, flags=flags),
            payload,
        ]
        self._end += HEADER_SIZE + len(payload)

    def flush(self, reserve: int) -> None:
        """Put what was added on the disk, unless less than a reserve would stay free."""
        segment = self.segment
        require_space(self.ops, segment.path.parent, self.pending_bytes, reserve)
        write_all(self.ops, segment.fd, self._pending, segment.size)
        self.ops.fdatasync(segment.fd)
        segment.size = self._end - segment.base
        self._pending = []

    def lets_begin(self, state: LogState) -> bool:
        """Write the STATE that begins the segment, or return False if there is too little room."""
        if not 0 <= self.state_size - len(encode_state(state)) <= 2 * _STATE_GROWTH:
            return False
        payload = encode_state_of_size(state, self.state_size)
        base, synced = self.segment.base, self.outlook.synced
        header = pack_header(EntryKind.STATE, base, payload, synced=synced, unit=NO_UNIT)
        write_all(self.ops, self.segment.fd, [header, payload], 0)
        self.ops.fdatasync(self.segment.fd)
        return True


class _Log(Protocol):
    """The thread that all that is small goes through."""

    failure: StoreError | None

    def submit(self, request: Request) -> None:
        """Take a request."""

    def outlook(self, keys: Collection[QueueKey]) -> Future[Outlook]:
        """Return where the next records of queues will stand."""

    def fail(self, error: BaseException) -> None:
        """End, as another thread of the store has."""


class Beside:
    """Writes large units beside the log, one after the other; any thread may call."""

    def __init__(
        self,
        folder: Path,
        staging: Staging,
        writer: _Log,
        *,
        settings: StoreSettings,
        ops: FileOps,
    ) -> None:
        self._folder = folder
        self._staging = staging
        self._writer = writer
        self._settings = settings
        self._ops = ops
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[UnitRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting: set[UnitRequest] = set()
        self._closed = False

    def takes(self, request: UnitRequest) -> bool:
        """Return whether a unit is so large that it is written here."""
        size = sum(map(self._staging.size, request.keys))
        size += sum(append.size for append in request.extra)
        return self._settings.unit_marks and size > self._settings.large_unit

    def submit(self, request: UnitRequest) -> None:
        """Submit a unit; its future tells how it went."""
        with self._lock:
            if self._closed:
                raise self._writer.failure or StoreError("the store is closed")
            if self._thread is None:
                self._thread = watched_thread(
                    self._run, name="headrace-store-units", on_failure=self._end
                )
                self._thread.start()
            self._waiting.add(request)
            self._requests.put(request)

    def close(self) -> None:
        """Break off what is being written: nothing of it is kept."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._requests.put(None)
            thread.join()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            if request.future.set_running_or_notify_cancel():
                self._answer(request)
            with self._lock:
                self._waiting.discard(request)

    def _end(self, error: BaseException) -> None:
        """Answer all who wait for the thread, which has ended with an error."""
        self._writer.fail(error)
        with self._lock:
            self._closed = True
        for request in self._waiting:
            if not request.future.done():
                request.future.set_exception(self._writer.failure or error)

    def _answer(self, request: UnitRequest) -> None:
        try:
            result = self._written(request)
        except Exception as error:  # noqa: BLE001 - the caller hears of it
            request.future.set_exception(error)
        else:
            request.future.set_result(result)

    def _written(self, request: UnitRequest) -> Any:
        runs = [run for key in request.keys for run in self._staging.runs(key)]
        size = sum(run.size for run in runs)
        for share in _ROOMS:
            plan = UnitPlan(runs, request.extra, self._ops)
            joined = self._joined(plan, room=int(share * size))
            if joined is not None:
                return joined
        plain = UnitRequest(request.keys, request.extra, future=Future())
        self._writer.submit(plain)
        return plain.future.result()

    def _joined(self, plan: UnitPlan, *, room: int) -> Any:
        """Write a unit, and let it join the log; None when it does not fit any more."""
        outlook = self._writer.outlook(plan.keys).result()
        path = self._folder / _NAME
        try:
            fd = self._ops.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise write_error(self._ops, path, error) from error
        segment = Segment(path, outlook.end + room, fd, 0, self._ops)
        try:
            unit = SideUnit(segment, self._ops, outlook, outlook.state_size + _STATE_GROWTH)
            self._write(unit, plan)
            request = JoinRequest(unit)
            self._writer.submit(request)
            joined = request.future.result()
        except BaseException:
            self._remove(segment)
            raise
        if joined is None:
            self._remove(segment)
        return joined

    def _write(self, unit: SideUnit, plan: UnitPlan) -> None:
        reserve = self._settings.min_free_space
        try:
            unit.add(EntryKind.BEGIN)
            for piece in plan:
                unit.add_piece(piece)
                if unit.pending_bytes >= min(_SLICE_BYTES, self._settings.large_unit):
                    self._check_open()
                    unit.flush(reserve)
                    failpoint("store.unit.slice")
            unit.add(EntryKind.END, count=unit.records)
            unit.flush(reserve)
        except OSError as error:
            raise write_error(self._ops, unit.segment.path, error) from error
        failpoint("store.unit.beside")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _remove(self, segment: Segment) -> None:
        """Forget a unit that has not joined the log; what stays is removed by the next start."""
        if segment.path.name != _NAME:
            return
        with contextlib.suppress(OSError):
            self._ops.close(segment.fd)
            self._ops.unlink(segment.path)
