"""Upkeep: what a store does beside reading and writing, put together.

Retention of the commit log, the reput into compaction logs, and their compactions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.compacting import Compactor
from headrace.store.compaction import StoreClock
from headrace.store.maintenance import Maintenance
from headrace.store.retention import ExpiryReport, Retention
from headrace.store.segments import GoneError

if TYPE_CHECKING:
    from headrace.store.catalog import Catalog
    from headrace.store.compaction import CompactionReport
    from headrace.store.fileops import FileOps
    from headrace.store.index import IndexView
    from headrace.store.opening import StoreParts
    from headrace.store.queue_logs import QueueLogs
    from headrace.store.reput import Reput
    from headrace.store.settings import StoreSettings

__all__ = ["Upkeep", "make_clock"]

#: How often compactions are looked for, seconds; and how many logs are opened for that at a time.
_LOOK = 1.0
_OPENED_AT_ONCE = 100
#: How often the age of the store is saved, seconds.
_CLOCK_SAVED = 60.0


class _GivenClock(StoreClock):
    """The time as a test says it."""

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__()
        self._now = now

    def now(self) -> int:
        return self._now()

    def elapsed(self) -> int:
        return self._now()


def make_clock(path: Path, now: Callable[[], int] | None) -> StoreClock:
    """Go on with the store's clock, or take the one of a test."""
    return StoreClock.open(path / "clock") if now is None else _GivenClock(now)


class Upkeep:
    """Keeps a store in shape, mostly on threads of its own."""

    def __init__(
        self, path: Path, parts: StoreParts, reput: Reput, settings: StoreSettings, ops: FileOps
    ) -> None:
        self._clock_path = path / "clock"
        self._ops = ops
        self._catalog: Catalog = parts.catalog
        self._writer = parts.writer
        self._logs: QueueLogs = parts.queue_logs
        self._interval = settings.maintenance_interval.total_seconds()
        self._next_expiry = time.monotonic() + self._interval
        self._clock_saved = time.monotonic()
        self._unopened: list[tuple[str, int]] | None = None
        self.reput = reput
        self.retention = Retention(
            parts.log,
            parts.catalog,
            parts.checkpointer,
            parts.writer,
            settings=settings,
            ops=ops,
            clock=parts.queue_logs.clock.now,
        )
        self.retention.hand_on = self._hand_on
        parts.writer.saving.handed_on = lambda: reput.durable
        self.compactor = Compactor(parts.queue_logs, reput)
        self._maintenance = Maintenance(
            self._tick,
            min(self._interval, _LOOK),
            name="headrace-maintenance",
            on_failure=self._writer.fail,
        )
        self.compactor.on_end = self._maintenance.wake

    def expire(self) -> ExpiryReport:
        """Delete what has expired by now."""
        return self.retention.run()

    def compact(self, topic: str | None, *, force: bool) -> list[CompactionReport]:
        """Compact all queues, or those of one topic, up to the end that readers see."""
        # Only what is on disk is handed on: a checkpoint syncs the log.
        self._writer.checkpoint().result()
        self.reput.catch_up()
        reports = []
        for view in self._catalog.views():
            if not view.compacted or topic not in (None, view.key[0]):
                continue
            if self.compactor.is_paused((*view.key, view.birth)):
                continue
            with contextlib.suppress(GoneError):
                reports.append(self._compact(view, force=force))
        return reports

    def compact_queue(self, view: IndexView) -> CompactionReport:
        """Compact one queue up to the end that readers see, its newest records included."""
        self.reput.catch_up()
        return self._compact(view, force=True)

    def _compact(self, view: IndexView, *, force: bool) -> CompactionReport:
        log = self._logs.of(view)
        if force:
            with self.reput.turn:
                log.roll()
        return self.compactor.compact((*view.key, view.birth), log, force=force)

    def close(self) -> None:
        """Stop, with everything on disk that was handed on."""
        self._maintenance.close()
        self.compactor.close()
        self.reput.close()
        if self._catalog.compacted:
            with contextlib.suppress(OSError):
                self._logs.clock.save(self._clock_path, self._ops)

    def _hand_on(self, position: int) -> int:
        return self.reput.catch_up(position) if self._catalog.compacted else position

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_expiry:
            self._next_expiry = now + self._interval
            self.retention.run()
        if self._catalog.compacted:
            self._open_some()
            self.compactor.look()
            if now - self._clock_saved >= _CLOCK_SAVED:
                self._clock_saved = now
                self._logs.clock.save(self._clock_path, self._ops)

    def _open_some(self) -> None:
        """Open logs from an earlier run, a few at a time: they may be due for compaction."""
        if self._unopened is None:
            self._unopened = [view.key for view in self._catalog.views() if view.compacted]
        batch, self._unopened = self._unopened[:_OPENED_AT_ONCE], self._unopened[_OPENED_AT_ONCE:]
        for key in batch:
            view = self._catalog.view(key)
            if view.compacted:
                with contextlib.suppress(GoneError):
                    self._logs.of(view)
