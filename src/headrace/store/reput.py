"""Reput: records of compacted topics go from the commit log to their compaction logs.

A thread follows the end of the commit log that is on disk.  What a compaction log has is not
handed to it again: its own next offset decides, so a crash costs work and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.backoff import Backoff
from headrace.errors import HeadraceError, StoreError
from headrace.protocol.records import Records
from headrace.store.log import CommitLog, GoneError, looking_again
from headrace.watched import OnFailure, watched_thread

if TYPE_CHECKING:
    from headrace.store.catalog import LogKey, QueueCatalog, QueueLogs
    from headrace.store.compaction import CompactionReport, QueueLog
    from headrace.store.compaction.manifest import Dirt
    from headrace.store.entries import QueueKey
    from headrace.store.index import IndexView, QueueIndex, Units


# When which queue is compacted: the dirtiest first, never two at once in one queue.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactorStatistics:
    """What compactions have done since the store was opened."""

    #: Queues with an open compaction log, and the bytes of their closed files.
    queues: int
    clean_bytes: int
    dirty_bytes: int
    #: Compactions that ended well, what they read and wrote, and how many failed.
    runs: int
    bytes_in: int
    bytes_written: int
    records_dropped: int
    failures: int
    #: When the last one ended, ms since 1970; 0 for never.
    last_run: int
    #: Last error of each queue whose compaction fails.
    errors: dict[str, str]


class _StoppedError(Exception):
    """The store is being closed."""


class Throttle:
    """Lets so many bytes pass in a second, all compactions together."""

    def __init__(self, bytes_per_second: int | None, stop: threading.Event) -> None:
        self._rate = bytes_per_second
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, count: int) -> None:
        """Wait until so many bytes may pass; raise when the store is being closed."""
        if self._stop.is_set():
            raise _StoppedError
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now)
            self._free_at = begin + count / self._rate
        if self._stop.wait(max(begin - now, 0.0)):
            raise _StoppedError


def in_order(dirt: dict[LogKey, Dirt], late_before: float) -> list[LogKey]:
    """Order queues that are due: those beyond the maximum lag, then the dirtiest, come first.

    Examples
    --------
    >>> from headrace.store.compaction.manifest import Dirt
    >>> dirt = {("t", queue, 0): Dirt(100, queue * 50, 900 - queue) for queue in (1, 2, 3)}
    >>> [key[1] for key in in_order(dirt, late_before=0)]
    [3, 2, 1]
    """
    return sorted(
        dirt, key=lambda key: (not _is_late(dirt[key], late_before), -dirt[key].ratio, key)
    )


def _is_late(dirt: Dirt, before: float) -> bool:
    return dirt.oldest_dirty is not None and dirt.oldest_dirty < before


class Compactor:
    """Runs compactions on a few threads of its own.

    Caller of :meth:`look`: the maintenance thread.
    """

    def __init__(self, logs: QueueLogs, reput: Reput) -> None:
        self._logs = logs
        self._reput = reput
        self._settings = logs.settings
        self._stop = threading.Event()
        self._throttle = Throttle(self._settings.bytes_per_second, self._stop)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._running: dict[LogKey, Future[None]] = {}
        self._locks: dict[LogKey, threading.Lock] = {}
        #: Queues that must stay as they are for now.
        self._paused: set[LogKey] = set()
        #: Queues that rest after an error, a quarter of an hour at most: until when, and which one.
        self._resting: dict[LogKey, tuple[float, Backoff, str]] = {}
        #: Called when a compaction has ended: the next may begin.
        self.on_end: Callable[[], None] = lambda: None
        self._runs = self._failures = self._bytes_in = self._written = self._dropped = 0
        self._last_run = 0

    def look(self) -> None:
        """Start what is due; does not wait for it."""
        logs = dict(self._logs.opened())
        self._roll_late(logs)
        due = {key: log.dirt() for key, log in logs.items() if self._may_run(key) and log.is_due()}
        for key in in_order(due, self._late_before()):
            with self._lock:
                if self._stop.is_set() or len(self._running) >= self._settings.threads:
                    return
                pool = self._pool = self._pool or ThreadPoolExecutor(
                    self._settings.threads, thread_name_prefix="headrace-compaction"
                )
                self._running[key] = pool.submit(self._run, key, logs[key])

    def compact(self, key: LogKey, log: QueueLog, *, force: bool) -> CompactionReport:
        """Compact one queue now, after what may run there.

        Raises
        ------
        StoreError, CorruptLogError
            Nothing has changed for readers.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if self.is_paused(key):
                raise StoreError(
                    f"queue {key[1]} of topic {key[0]!r} is not compacted: a follower reads it "
                    f"from the beginning, or this one is being rebuilt",
                    hint="try again later",
                )
            report = log.compact(force=force, throttle=self._throttle)
        with self._lock:
            self._resting.pop(key, None)
            if not report.records_in:
                return report
            self._runs += 1
            self._bytes_in += report.bytes_in
            self._written += report.bytes_written
            self._dropped += report.records_in - report.records_out
            self._last_run = self._logs.clock.now()
        return report

    def pause(self, key: LogKey) -> bool:
        """Keep a queue from being compacted; return False while it is being compacted just now."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
            if key in self._running or lock.locked():
                return False
            self._paused.add(key)
            return True

    def resume(self, key: LogKey) -> None:
        """Allow a queue to be compacted again."""
        with self._lock:
            self._paused.discard(key)

    def is_paused(self, key: LogKey) -> bool:
        """Return whether a queue must not be compacted for now."""
        return key in self._paused

    def statistics(self) -> CompactorStatistics:
        """Return what was done, and what is to be done."""
        dirt = [log.dirt() for _, log in self._logs.opened()]
        with self._lock:
            errors = {f"{key[0]}@{key[1]}": error for key, (_, _, error) in self._resting.items()}
            return CompactorStatistics(
                queues=len(dirt),
                clean_bytes=sum(each.clean_bytes for each in dirt),
                dirty_bytes=sum(each.dirty_bytes for each in dirt),
                runs=self._runs,
                bytes_in=self._bytes_in,
                bytes_written=self._written,
                records_dropped=self._dropped,
                failures=self._failures,
                last_run=self._last_run,
                errors=errors,
            )

    def close(self) -> None:
        """Stop what runs: readers keep the old view of it."""
        with self._lock:
            self._stop.set()
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _may_run(self, key: LogKey) -> bool:
        with self._lock:
            rest = self._resting.get(key)
            free = key not in self._running and key not in self._paused
            return free and (rest is None or rest[0] <= time.monotonic())

    def _run(self, key: LogKey, log: QueueLog) -> None:
        try:
            self.compact(key, log, force=False)
        except _StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - nobody else hears of it
            logger.warning("compaction of queue %s@%d failed: %s", key[0], key[1], error)
            with self._lock:
                self._failures += 1
                backoff = self._resting[key][1] if key in self._resting else Backoff(15.0, 900.0)
                self._resting[key] = (time.monotonic() + backoff.next(), backoff, str(error))
        finally:
            with self._lock:
                self._running.pop(key, None)
            self.on_end()

    def _roll_late(self, logs: dict[LogKey, QueueLog]) -> None:
        """Close active files with records older than the maximum lag: only then can they go."""
        before = self._late_before()
        for key, log in logs.items():
            if not self._may_run(key):
                continue
            begun = log.active_since()
            if begun is not None and begun < before:
                with self._reput.turn:
                    log.roll()

    def _late_before(self) -> float:
        lag = self._settings.max_lag
        return -1.0 if lag is None else self._logs.clock.now() - lag.total_seconds() * 1000


#: Records wait so long for more of their queue, seconds, or until there are so many: appends
#: are large then, and reads find them in the commit log meanwhile.
_PATIENCE = 60.0
_ENOUGH = 2048
#: Pause between two looks while there are records to hand on, seconds.
_LINGER = 0.2
#: One append has at most so many records and (but for one large record) bytes.
_RECORDS = 65_536
_BYTES = 4 * 1024 * 1024
#: What was handed on is synced after so long, seconds, or when it is so much of one queue.
_SYNC_AGE = 300.0
_SYNC_BYTES = 64 * 1024 * 1024
#: A queue that failed is tried again after so long, seconds.
_BACK_OFF = 5.0
#: How often to look for what nobody told of, seconds.
_LOOK = 2.0


@dataclass(frozen=True, slots=True)
class ReputStatistics:
    """How far the compaction logs are."""

    #: Everything before this position of the commit log was handed on, and is on disk.
    durable: int
    #: Bytes of the commit log that were not looked at yet.
    lag: int
    #: Records and bytes handed on since the store was opened.
    records: int
    bytes: int
    #: The last error of each queue that is behind because of it.
    errors: dict[QueueKey, str]


@dataclass(slots=True)
class _Unsynced:
    log: QueueLog
    #: Log position of its first record that may not be on disk.
    position: int
    since: float
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    """A queue with records to hand on."""

    since: float
    #: None of them lies before this position of the commit log.
    position: int


@dataclass(frozen=True, slots=True)
class _Failed:
    error: str
    again: float


class Reput:
    """Keeps compaction logs up with the commit log."""

    def __init__(
        self,
        log: CommitLog,
        catalog: QueueCatalog,
        logs: QueueLogs,
        slices: Callable[[Units], list[memoryview]],
        handed_on: int,
        held: Callable[[IndexView, QueueLog], bool] = lambda *_: False,
        *,
        on_failure: OnFailure,
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._logs = logs
        #: Returns the checked bytes of units.
        self._slices = slices
        #: Returns whether a queue's log takes nothing yet: older records come first.
        self._held = held
        #: Held by whoever appends to compaction logs, rolls or cuts them.
        self.turn = threading.RLock()
        #: In the order in which they came.
        self._pending: dict[QueueKey, _Pending] = {}
        #: The next offset in the compaction log.
        self._next: dict[QueueKey, int] = {}
        #: News before this position were taken.
        self._seen = handed_on
        #: Whether queues that an earlier run left behind are among the pending ones.
        self._looked_back = False
        self._unsynced: dict[QueueKey, _Unsynced] = {}
        self._failed: dict[QueueKey, _Failed] = {}
        #: Told of the error that has ended the thread.
        self._on_failure = on_failure
        self._done = handed_on
        self._durable = handed_on
        self._records = self._bytes = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        #: Queues whose logs turned out to lack something when they were opened.
        self._late: queue.SimpleQueue[QueueKey] = queue.SimpleQueue()
        logs.on_behind = self._late.put
        catalog.on_compacted = self._notice
        if catalog.compacted:
            self._notice()

    def _behind(self, handed_on: int) -> Iterable[QueueKey]:
        """Yield the queues that may have records behind a position."""
        compacted = self._catalog.compacted
        for view in self._catalog.views() if compacted else ():
            last = view.max_offset - 1
            if view.compacted and last >= view.min_offset:
                late = view.position(last) >= handed_on or compacted[view.key[0]] > handed_on
                if late:
                    yield view.key

    @property
    def durable(self) -> int:
        """Everything before this position is in compaction logs, on disk; any thread may ask."""
        return self._durable if self._catalog.compacted else self._catalog.position

    def statistics(self) -> ReputStatistics:
        """Return how far the compaction logs are."""
        end = self._catalog.position
        lag = max(end - self._done, 0) if self._catalog.compacted else 0
        errors = {key: failed.error for key, failed in list(self._failed.items())}
        return ReputStatistics(self.durable, lag, self._records, self._bytes, errors)

    def catch_up(self, position: int | None = None) -> int:
        """Hand on everything that readers see, sync, and return the position that is safe then.

        With a position, queues that hold records before it are looked at even if they were
        thought to be done: what retention deletes next must not be needed.
        """
        with self.turn:
            if position is not None:
                self._add(self._holding(position), self._log.begin)
            self._failed = {}
            self._step(everything=True)
            self._sync(everything=True)
            return self.durable

    def close(self) -> None:
        """Stop; what was not handed on is when the store is opened again."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        with self.turn:
            self._sync(everything=True)

    def _notice(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = watched_thread(
                self._run, name="headrace-reput", on_failure=self._on_failure
            )
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._closing.wait(_LINGER):
                return
            with self.turn:
                try:
                    self._step(everything=False)
                    self._sync(everything=False)
                except Exception:
                    logger.exception("the reput failed, it goes on")

    def _pause(self) -> float:
        """Return the seconds until something may be due without news."""
        if self._pending or self._failed:
            return _LINGER
        return _LOOK

    def _holding(self, position: int) -> set[QueueKey]:
        return {
            view.key
            for view in self._catalog.views()
            if view.compacted
            and view.min_offset < view.max_offset
            and view.position(view.min_offset) < position
        }

    def _add(self, keys: Iterable[QueueKey], position: int) -> None:
        new = _Pending(time.monotonic(), position)
        for key in keys:
            known = self._pending.setdefault(key, new)
            if known.position > position:
                self._pending[key] = _Pending(known.since, position)

    def _step(self, *, everything: bool) -> None:
        """Hand on what came since the last step. Caller: has the turn."""
        end, news, gone = self._catalog.take_news()
        if gone:
            self._forget(gone)
        if not self._looked_back:
            self._add(self._behind(self._done), self._done)
            self._looked_back = True
        while not self._late.empty():
            key = self._late.get()
            # What was handed on since it was opened lacks nothing that news do not tell of.
            if key not in self._next:
                self._add([key], self._log.begin)
        self._add(news, self._seen)
        self._seen = end
        for key in list(self._pending) if everything else self._ripe(news):
            self._hand_on(key)
        durable = min(end, self._log.synced)
        self._done = min([durable, *(each.position for each in self._pending.values())])
        self._note_durable()

    def _ripe(self, news: Iterable[QueueKey]) -> list[QueueKey]:
        """Return the queues that have waited long enough, or have enough records for an append."""
        now = time.monotonic()
        ripe = {
            key
            for key in news
            if self._catalog.view(key).max_offset - self._next.get(key, 0) >= _ENOUGH
        }
        for key, each in self._pending.items():
            if now - each.since < _PATIENCE:
                break
            ripe.add(key)
        resting = {key for key, failed in self._failed.items() if failed.again > now}
        return sorted((ripe | self._failed.keys()) - resting)

    def _forget(self, gone: Iterable[QueueIndex]) -> None:
        """Drop what is known of deleted queues, and delete their logs."""
        for index in gone:
            self._pending.pop(index.key, None)
            self._next.pop(index.key, None)
            self._unsynced.pop(index.key, None)
            self._failed.pop(index.key, None)
        self._logs.drop(gone)

    def _hand_on(self, key: QueueKey) -> None:
        try:
            rest = looking_again(lambda: self._hand_on_queue(self._catalog.view(key)))
        except (HeadraceError, OSError, GoneError) as error:
            self._fail(key, error)
        else:
            self._failed.pop(key, None)
            self._pending.pop(key, None)
            if rest is not None:
                self._add([key], rest)

    def _fail(self, key: QueueKey, error: Exception) -> None:
        if key not in self._failed:
            logger.error("the compaction log of queue %s stays behind: %s", key, error)
        self._add([key], self._durable)
        self._failed[key] = _Failed(str(error), time.monotonic() + _BACK_OFF)

    def _hand_on_queue(self, view: IndexView) -> int | None:
        """Hand on the records of a queue that are on disk; return where the rest begins, if any."""
        if not view.compacted:
            return None
        log = self._logs.of(view)
        if self._held(view, log):
            empty = view.min_offset == view.max_offset
            return None if empty else view.position(view.min_offset)
        at, last = max(log.next_offset, view.min_offset), view.max_offset
        synced = self._log.synced
        while at < last:
            units = view.units(at, min(last, at + _RECORDS))
            units = units[: _fitting(units, synced)]
            if not len(units):
                return view.position(at)
            self._append(view.key, log, units[units["size"] > 0])
            at += len(units)
            self._next[view.key] = at
        return None

    def _append(self, key: QueueKey, log: QueueLog, units: Units) -> None:
        if not len(units):
            return
        block = bytearray().join(self._slices(units))
        sizes = units["size"].astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        log.append(Records(block, starts))
        known = self._unsynced.get(key)
        if known is None:
            known = _Unsynced(log, int(units["position"][0]), time.monotonic())
            self._unsynced[key] = known
        known.bytes += len(block)
        self._records += len(units)
        self._bytes += len(block)

    def _sync(self, *, everything: bool) -> None:
        """Sync logs that are due. Caller: has the turn."""
        oldest = time.monotonic() - _SYNC_AGE
        due = [
            (key, each)
            for key, each in self._unsynced.items()
            if everything or each.since <= oldest or each.bytes >= _SYNC_BYTES
        ]
        for key, each in due:
            try:
                each.log.sync()
            except (HeadraceError, OSError) as error:
                self._fail(key, error)
            else:
                del self._unsynced[key]
        self._note_durable()

    def _note_durable(self) -> None:
        self._durable = min([self._done, *(each.position for each in self._unsynced.values())])


def _fitting(units: Units, synced: int) -> int:
    """Return how many units are on disk and fit one append; the first fits always."""
    durable = int(np.searchsorted(units["position"] + units["size"], synced, side="right"))
    sizes = np.cumsum(units["size"], dtype=np.int64)
    return min(durable, max(int(np.searchsorted(sizes, _BYTES, side="right")), 1))
