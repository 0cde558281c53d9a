"""The writer: appends, syncs and publishes for everybody, one at a time, mostly on one thread.

It takes all that waits, writes it with one call, syncs once, shows it to readers, and answers
all callers in one pass.  What was not written whole is cut off again before anybody hears of it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import HeadraceError, StoreError, StoreFailedError
from headrace.failpoints import failpoint
from headrace.protocol.records import record_sizes
from headrace.protocol.stamps import stamp_records
from headrace.store.entries import HEADER_SIZE, NO_UNIT, UNTAGGED, EntryKind, QueueKey, encode_state
from headrace.store.fileops import FileOps, write_error
from headrace.store.index import WriteGroup, WriterCounters
from headrace.store.requests import (
    AloneRequest,
    AppendRequest,
    AppendResult,
    CompactRequest,
    DropRequest,
    JoinRequest,
    Outlook,
    Request,
    SideUnit,
    StopRequest,
    UnitRequest,
    UnitResult,
    WakeRequest,
)
from headrace.store.staging import Piece, Staging, UnitPlan
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.checkpoint import Saving
    from headrace.store.log import CommitLog, Segment
    from headrace.store.settings import StoreSettings


# Writing entries: what callers ask for, as entries of the log and units of the indexes.


class EntryWriter:
    """Adds entries to the log, out of sight of readers. Caller: who has the writer's turn."""

    def __init__(
        self,
        log: CommitLog,
        catalog: QueueCatalog,
        staging: Staging,
        ops: FileOps,
        *,
        unit_marks: bool,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._staging = staging
        self._ops = ops
        self._unit_marks = unit_marks
        #: The unit that is being written: where it begins, and its group.
        self._open_unit: tuple[int, WriteGroup] | None = None
        #: Host and port that records name as the place where they are stored.
        self.store_host = ("127.0.0.1", 0)
        #: Highest store time so far, ms since 1970.
        self.timestamp = 0
        log.state = self._state

    def appends(self, group: WriteGroup, request: AppendRequest) -> list[AppendResult]:
        """Write records of some queues."""
        results = []
        for append in request.appends:
            offset, position = self._write(group, Piece.of(append), NO_UNIT)
            results.append(AppendResult(offset, position, group.timestamp))
        return results

    def unit(self, group: WriteGroup, request: UnitRequest) -> UnitResult:
        """Write staged parts and some more records as one unit."""
        runs = [run for key in request.keys for run in self._staging.runs(key)]
        plan = UnitPlan(runs, request.extra, self._ops)
        own = WriteGroup(self._log.end, group.timestamp, group.touched)
        unit = self._mark(EntryKind.BEGIN, 0, NO_UNIT)
        self._open_unit = unit, own
        try:
            first_offsets = self._write_pieces(own, plan, unit)
            self._mark(EntryKind.END, own.records, unit)
        finally:
            self._open_unit = None
        group.records += own.records
        group.units += 1
        return UnitResult(self._log.end, first_offsets)

    def outlook(self, keys: Iterable[QueueKey]) -> Outlook:
        """Return what a unit that is written beside the log must follow."""
        state = encode_state(self._catalog.state(self.timestamp, NO_UNIT, 0))
        return Outlook(
            end=self._log.end,
            synced=self._log.synced,
            timestamp=self.timestamp,
            store_host=self.store_host,
            state_size=len(state),
            offsets={key: self._catalog.next_offset(key) for key in keys},
        )

    def join(self, group: WriteGroup, side: SideUnit) -> UnitResult | None:
        """Take a unit that was written beside the log into it; None when it no longer fits."""
        offsets = side.first_offsets
        if any(self._catalog.next_offset(key) != first for key, first in offsets.items()):
            return None
        if not side.lets_begin(self._catalog.state(self.timestamp, NO_UNIT, 0)):
            return None
        if not self._log.reach(side.segment.base):
            return None
        failpoint("store.unit.reached")
        self._log.join(side.segment)
        failpoint("store.unit.joined")
        for piece in side.pieces:
            index = self._catalog.index_to_extend(piece.key, piece.position)
            index.extend(piece.positions, piece.sizes, piece.tags)
            group.touched.add(index)
        group.records += side.records
        group.units += 1
        return UnitResult(self._log.end, dict(offsets))

    def name(self, kind: EntryKind, topic: str) -> None:
        """Write an entry that names a topic."""
        name = topic.encode()
        self._log.place(len(name))
        self._log.add(kind, name)

    def _write_pieces(self, group: WriteGroup, plan: UnitPlan, unit: int) -> dict[QueueKey, int]:
        """Write the records of a unit, and return the first offset in each queue."""
        first_offsets: dict[QueueKey, int] = {}
        for number, piece in enumerate(plan):
            if number == len(plan) // 2:
                self._log.flush()
                failpoint("store.unit.middle")
            offset, _ = self._write(group, piece, unit)
            first_offsets.setdefault(piece.key, offset)
        self._log.flush()
        failpoint("store.unit.end")
        return first_offsets

    def _state(self) -> tuple[bytes, int]:
        """Return the STATE of a new segment, and which unit is being written."""
        unit, group = self._open_unit or (NO_UNIT, None)
        records = group.records if group is not None else 0
        return encode_state(self._catalog.state(self.timestamp, unit, records)), unit

    def _mark(self, kind: EntryKind, count: int, unit: int) -> int:
        """Write the begin or the end of a unit, and return the unit's number."""
        if not self._unit_marks:
            return NO_UNIT
        position = self._log.place(0) - HEADER_SIZE
        self._log.add(kind, b"", count, unit)
        return position

    def _write(self, group: WriteGroup, piece: Piece, unit: int) -> tuple[int, int]:
        """Stamp a piece, add it as an entry, and return its first offset and its position."""
        records = piece.records
        payload, count = records.data, len(records.starts)
        position = self._log.place(len(payload))
        index = self._catalog.index_to_extend(piece.key, position - HEADER_SIZE)
        offset = index.next_offset
        stamp_records(records, offset, position, group.timestamp, self.store_host)
        group.touched.add(index)
        group.records += count
        flags = 0 if piece.tags.any() else UNTAGGED
        self._log.add(EntryKind.DATA, payload, count, unit, flags)
        if count == 1:
            index.add(position, len(payload), int(piece.tags[0]))
        else:
            index.extend(np.add(records.starts, position), record_sizes(records), piece.tags)
        return offset, position


logger = logging.getLogger(__name__)

OnAppend = Callable[[Collection[QueueKey]], None]
_Write = Callable[[WriteGroup], Any]

#: What a store that is a copy of another refuses.
_WRITES = (AppendRequest, UnitRequest, JoinRequest, DropRequest, CompactRequest)
#: One group takes no further request beyond this many bytes.
_GROUP_BYTES = 16 * 1024 * 1024
_GROUP_REQUESTS = 4096
#: What is larger holds the caller's thread, which may be that of a loop, for too long.
_OWN_THREAD_BYTES = 1 << 20


class Writer:
    """Owns the log and the catalog's unpublished side; the only thread that changes either."""

    def __init__(
        self,
        log: CommitLog,
        catalog: QueueCatalog,
        staging: Staging,
        saving: Saving,
        *,
        settings: StoreSettings,
        ops: FileOps,
        clock: Callable[[], int],
        on_append: OnAppend | None,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self.saving = saving
        self._settings = settings
        self._ops = ops
        self._clock = clock
        self._on_append = on_append
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._entries = EntryWriter(log, catalog, staging, ops, unit_marks=settings.unit_marks)
        self._sync_time = time.monotonic()
        self.counters = WriterCounters()
        #: Why the store takes no more, None while it does.
        self.failure: StoreError | None = None
        #: Why the store takes nothing from its callers for now: it is a copy of another.
        self.refusal: HeadraceError | None = None
        #: Told of each new end that readers see, if anybody wants to know.
        self.on_publish: Callable[[int], None] | None = None
        self._closing = threading.Lock()
        self._closed = False
        #: Whether the thread has ended with an error.
        self._lost = False
        #: Held by whoever writes; taken before any change to log or catalog.
        self._turn = threading.Lock()
        #: Requests handed to the thread and not done yet.
        self._waiting: set[Request] = set()
        #: Until when the thread sleeps unless there is a request; None is for ever.
        self._sleeps_until: float | None = None
        self._thread = watched_thread(self._run, name="headrace-store", on_failure=self._end)

    @property
    def store_host(self) -> tuple[str, int]:
        """Host and port that records name as the place where they are stored."""
        return self._entries.store_host

    @store_host.setter
    def store_host(self, host: tuple[str, int]) -> None:
        self._entries.store_host = host

    @property
    def last_timestamp(self) -> int:
        """Store time of the newest record: the next is not older, whatever the clock says."""
        return self._entries.timestamp

    @last_timestamp.setter
    def last_timestamp(self, timestamp: int) -> None:
        self._entries.timestamp = timestamp

    def start(self) -> None:
        """Begin to take requests."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Submit a request; its future tells how it went."""
        with self._closing:
            if self._closed:
                raise StoreError("the store is closed")
            if self._lost:
                self._require_working()
            if self.refusal is not None and isinstance(request, _WRITES):
                raise type(self.refusal)(self.refusal.message, hint=self.refusal.hint)
            if not self._may_write_here(request):
                self._waiting.add(request)
                self._requests.put(request)
                return
        try:
            assert isinstance(request, AppendRequest)
            self._commit_appends([request])
            self._wake_in_time()
        except BaseException as error:
            self._break_off([request], error)
            raise
        finally:
            self._turn.release()

    def _may_write_here(self, request: Request) -> bool:
        """Take the turn if the caller's own thread may write; waking another costs more."""
        if self._settings.flush == "sync" or not isinstance(request, AppendRequest):
            return False
        if request.size > _OWN_THREAD_BYTES:
            return False
        # Those who came before must be served before, and nobody waits for a sync here.
        return not self._waiting and self._turn.acquire(blocking=False)

    def _wake_in_time(self) -> None:
        """Make the thread sync and save when it is due, though it got no request."""
        idle = self._idle_time()
        if idle is None:
            return
        due = time.monotonic() + idle
        if self._sleeps_until is None or due < self._sleeps_until:
            self._sleeps_until = due
            self._requests.put(WakeRequest())

    def checkpoint(self) -> Future[None]:
        """Save a checkpoint now; done when it is saved, or could not be."""
        saved: Future[None] = Future()

        def refused(done: Future[None]) -> None:
            if done.exception() is not None:
                saved.set_result(None)

        request = AloneRequest(lambda: self.saving.wanted.append(saved))
        request.future.add_done_callback(refused)
        self.submit(request)
        return saved

    def outlook(self, keys: Collection[QueueKey]) -> Future[Outlook]:
        """Return what a unit for some queues that is written beside the log must follow."""

        def look() -> Outlook:
            self._begin()
            return self._entries.outlook(keys)

        request = AloneRequest(look)
        self.submit(request)
        return request.future

    def detach(self, position: int) -> list[Segment]:
        """Take whole segments before a position out of the log, for retention to delete."""
        with self._turn:
            return self._log.detach(position)

    def close(self) -> bool:
        """Finish what waits, save a checkpoint, and stop; return False if that was done before."""
        with self._closing:
            if self._closed:
                return False
            self._closed = True
            stop = StopRequest()
            self._waiting.add(stop)
            self._requests.put(stop)
        self._thread.join()
        return True

    def _run(self) -> None:
        running = True
        while running:
            group = self._take()
            with self._turn:
                running = self._serve(group)
                self._keep_up(final=not running)
            with self._closing:
                self._waiting.difference_update(group)

    def _end(self, error: BaseException) -> None:
        """Answer all who wait for the thread, which has ended with an error."""
        with self._closing:
            self._lost = True
        self._break_off(self._waiting, error)
        self.saving.give_up()

    def _break_off(self, requests: Iterable[Request], error: BaseException) -> None:
        """Fail for good in the middle of something: what is known of the log is not all of it."""
        self.fail(error)
        for request in requests:
            if not isinstance(request, WakeRequest | StopRequest) and not request.future.done():
                request.future.set_exception(self._refused())

    def fail(self, error: BaseException) -> None:
        """Take no more, as a part of the store has ended with an error; any thread may call."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self._fail(
            StoreFailedError(
                f"a part of the store ended by an error that nobody had foreseen ({what})",
                hint="start again: recovery keeps what is whole; if it comes back, report it",
            )
        )
        # Those who wait for a checkpoint hear that none comes.
        self._requests.put(WakeRequest())

    def _serve(self, group: list[Request]) -> bool:
        """Do what was asked for, in order; return False when it is to stop."""
        running = True
        for kind, run in groupby(group, type):
            if kind is AppendRequest:
                self._commit_appends(list(run))  # type: ignore[arg-type]
            elif kind is UnitRequest:
                self._commit_units(list(run))  # type: ignore[arg-type]
            else:
                for request in run:
                    running = self._handle(request)
        return running

    def _handle(self, request: Request) -> bool:
        """Do one thing that is neither an append nor a unit; return False to stop."""
        if isinstance(request, JoinRequest):
            self._commit(request.future, lambda group: self._entries.join(group, request.unit))
        elif isinstance(request, DropRequest):
            self._commit(request.future, lambda _: self._drop(request))
        elif isinstance(request, AloneRequest):
            self._do_alone(request)
        elif isinstance(request, CompactRequest):
            self._commit(request.future, lambda _: self._compact(request))
        return not isinstance(request, StopRequest)

    def _take(self) -> list[Request]:
        """Wait for a request, or for the next sync or checkpoint; then take all that waits."""
        group: list[Request] = []
        size = 0
        with self._turn:
            idle = self._idle_time()
            self._sleeps_until = None if idle is None else time.monotonic() + idle
        try:
            group.append(self._requests.get(timeout=idle))
            while size < _GROUP_BYTES and len(group) < _GROUP_REQUESTS:
                size += group[-1].size
                group.append(self._requests.get_nowait())
        except queue.Empty:
            pass
        return group

    def _commit_appends(self, requests: list[AppendRequest]) -> None:
        requests = [each for each in requests if each.future.set_running_or_notify_cancel()]
        if not requests:
            return
        group = self._begin()
        try:
            self._require_working()
            results = [self._entries.appends(group, request) for request in requests]
            self._log.flush()
            failpoint("store.append.written")
            if self._settings.flush == "sync":
                self.sync()
                failpoint("store.append.synced")
        except Exception as error:  # noqa: BLE001 - every caller hears of it
            failure = self.undo(group, error)
            for request in requests:
                request.future.set_exception(failure)
            return
        self._publish(group)
        for request, result in zip(requests, results, strict=True):
            request.future.set_result(result)
        self._notify(group)

    def _commit_units(self, requests: list[UnitRequest]) -> None:
        """Write units one after the other, and sync once for all of them."""
        waiting = [each for each in requests if each.future.set_running_or_notify_cancel()]
        writes = [(each.future, partial(self._entries.unit, request=each)) for each in waiting]
        if writes and not self._are_committed(writes):
            # One that fails must not take the others with it.
            for write in writes:
                self._are_committed([write])

    def _commit(self, future: Future[Any], write: _Write) -> None:
        """Write one thing that stands alone."""
        if future.set_running_or_notify_cancel():
            self._are_committed([(future, write)])

    def _are_committed(self, writes: Sequence[tuple[Future[Any], _Write]]) -> bool:
        """Write and sync, in every mode; return False if one of several failed: none is kept."""
        group = self._begin()
        try:
            self._require_working()
            results = [write(group) for _, write in writes]
            self.sync()
            failpoint("store.unit.synced")
        except Exception as error:  # noqa: BLE001 - the caller hears of it
            failure = self.undo(group, error)
            if len(writes) > 1:
                return False
            writes[0][0].set_exception(failure)
            return True
        self._publish(group)
        for (future, _), result in zip(writes, results, strict=True):
            future.set_result(result)
        self._notify(group)
        return True

    def _do_alone(self, request: AloneRequest) -> None:
        if not request.future.set_running_or_notify_cancel():
            return
        try:
            self._require_working()
            result = request.work()
        except Exception as error:  # noqa: BLE001 - the caller hears of it
            request.future.set_exception(error)
            return
        request.future.set_result(result)

    def _begin(self) -> WriteGroup:
        # Store times never fall, so that a search by time finds its way.
        self.last_timestamp = max(self.last_timestamp, self._clock())
        return WriteGroup(self._log.end, self.last_timestamp)

    def _require_working(self) -> None:
        if self.failure is not None:
            raise self._refused()

    def _refused(self) -> StoreFailedError:
        assert self.failure is not None
        return StoreFailedError(self.failure.message, hint=self.failure.hint)

    def _drop(self, request: DropRequest) -> int:
        self._entries.name(EntryKind.DROP_TOPIC, request.topic)
        self.sync()
        dropped = self._catalog.drop_topic(request.topic, self._log.end)
        self.saving.dropped += [index.folder for index in dropped]
        return len(dropped)

    def _compact(self, request: CompactRequest) -> None:
        if request.topic not in self._catalog.compacted:
            self._entries.name(EntryKind.COMPACT_TOPIC, request.topic)
            self.sync()
            self._catalog.compact_topic(request.topic, self._log.end)

    def sync(self) -> None:
        """Put everything on the disk. Caller: holds the turn."""
        self._log.sync()
        self._sync_time = time.monotonic()
        self.counters.syncs += 1

    def _publish(self, group: WriteGroup) -> None:
        self.saving.before_change()
        self._catalog.publish(group.touched, self._log.end)
        if self.on_publish is not None:
            self.on_publish(self._log.end)
        self.counters.groups += 1
        self.counters.records += group.records
        self.counters.units += group.units
        self.counters.bytes += self._log.end - group.begin

    def _notify(self, group: WriteGroup) -> None:
        if self._on_append is not None and group.touched:
            self.tell([index.key for index in group.touched])

    def tell(self, keys: Collection[QueueKey]) -> None:
        """Report queues that have new messages."""
        if self._on_append is None or not keys:
            return
        try:
            self._on_append(keys)
        except Exception:
            logger.exception("the callback for new messages raised")

    def undo(self, group: WriteGroup, error: Exception) -> Exception:
        """Take back everything of a group, and return what to tell its callers."""
        self._catalog.retract(group.touched)
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            error = write_error(self._ops, self._log.segments[-1].path, error)
        if isinstance(error, StoreFailedError):
            # The log may end in unknown bytes: only recovery may look at them.
            self._fail(error)
            return error
        try:
            if self._log.end != group.begin:
                self._log.cut(group.begin)
        except OSError as again:
            failure = StoreFailedError(
                f"{self._log.segments[-1].path}: a write failed ({error}), and what it left could "
                f"not be cut off again: {again.strerror or again}",
                hint="check the disk, then start again: only then it is known what was kept of it",
            )
            self._fail(failure)
            return failure
        return error

    def _fail(self, error: StoreError) -> None:
        if self.failure is None:
            self.failure = error
            logger.error("the store takes no more: %s", error)

    def _idle_time(self) -> float | None:
        """Return the seconds until something is due, or None when nothing is."""
        if self.failure is not None:
            return None
        due = []
        if self._log.synced < self._log.end:
            due.append(self._sync_time + self._settings.flush_interval.total_seconds())
        if self.saving.is_dirty:
            due.append(self.saving.due())
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def _keep_up(self, *, final: bool) -> None:
        """Sync and save what is due."""
        if self.failure is not None:
            self.saving.give_up()
            return
        late = time.monotonic() - self._sync_time >= self._settings.flush_interval.total_seconds()
        save = self.saving.is_due(final=final)
        try:
            if self._log.synced < self._log.end and (late or save or final):
                self.sync()
        except StoreFailedError as error:
            self._fail(error)
            self.saving.give_up()
            return
        if save:
            self.saving.save(self.last_timestamp)
