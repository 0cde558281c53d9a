"""When which queue is compacted: the dirtiest first, never two at once in one queue."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import StoreError

if TYPE_CHECKING:
    from headrace.store.compaction import CompactionReport, QueueLog
    from headrace.store.compaction.reports import Dirt
    from headrace.store.queue_logs import LogKey, QueueLogs
    from headrace.store.reput import Reput

__all__ = ["Compactor", "CompactorStatistics", "Throttle", "in_order"]

_logger = logging.getLogger(__name__)

#: A queue whose compaction failed rests so long at first, seconds, and at most so long.
_BACK_OFF = 15.0
_MOST_BACK_OFF = 900.0


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
        """Wait until so many bytes may pass; raises when the store is being closed."""
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
    >>> from headrace.store.compaction.reports import Dirt
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
        #: Queues that rest after an error: until when, and how long the next time.
        self._resting: dict[LogKey, tuple[float, float, str]] = {}
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
        """Keep a queue from being compacted; False while it is being compacted just now."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
            if key in self._running or lock.locked():
                return False
            self._paused.add(key)
            return True

    def resume(self, key: LogKey) -> None:
        """Let a queue be compacted again."""
        with self._lock:
            self._paused.discard(key)

    def is_paused(self, key: LogKey) -> bool:
        """Whether a queue must not be compacted for now."""
        return key in self._paused

    def statistics(self) -> CompactorStatistics:
        """Tell what was done, and what is to be done."""
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
            _logger.warning("compaction of queue %s@%d failed: %s", key[0], key[1], error)
            with self._lock:
                self._failures += 1
                pause = self._resting.get(key, (0.0, _BACK_OFF, ""))[1]
                longer = min(2 * pause, _MOST_BACK_OFF)
                self._resting[key] = (time.monotonic() + pause, longer, str(error))
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
