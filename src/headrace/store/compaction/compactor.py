"""One compaction of one queue: mark, write, publish."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import StoreFailedError
from headrace.store.compaction.marking import Horizon, Marked, Rounds, mark
from headrace.store.compaction.planning import plan
from headrace.store.compaction.reports import CompactionReport, Dirt
from headrace.store.compaction.rewriting import Outputs, Place
from headrace.store.compaction.units import NOT_A_TOMBSTONE, NOT_MET

if TYPE_CHECKING:
    from headrace.store.compaction.clock import StoreClock
    from headrace.store.compaction.settings import CompactionSettings
    from headrace.store.compaction.view import Part, View

__all__ = ["Compaction", "Pace", "candidates_of", "dirt_of", "is_due"]

_MS = timedelta(milliseconds=1)


def candidates_of(
    view: View, now: int, settings: CompactionSettings, *, force: bool, below: int | None = None
) -> tuple[Part, ...]:
    """Choose the files to compact: closed ones from the oldest on, none of them too young."""
    youngest = now - settings.min_lag // _MS
    chosen: list[Part] = []
    for part in view.closed:
        if not force and settings.min_lag and part.meta.newest > youngest:
            break
        if below is not None and part.meta.last >= below:
            break
        chosen.append(part)
    return tuple(chosen)


def dirt_of(parts: tuple[Part, ...], clean_until: int) -> Dirt:
    """Count how much of closed files was compacted and how much was not."""
    clean = dirty = 0
    oldest: int | None = None
    for part in parts:
        meta = part.meta
        if meta.last < clean_until:
            clean += meta.size
            continue
        # A round may have stopped inside this file: by its share of records.
        row = part.file.row_of(meta, clean_until)
        share = meta.size * row // meta.count
        clean += share
        dirty += meta.size - share
        oldest = meta.oldest if oldest is None else min(oldest, meta.oldest)
    return Dirt(clean, dirty, oldest)


def is_due(view: View, settings: CompactionSettings, clock: StoreClock) -> bool:
    """Tell whether a queue is worth a compaction now."""
    now = clock.now()
    parts = candidates_of(view, now, settings, force=False)
    dirt = dirt_of(parts, view.clean_until)
    if dirt.dirty_bytes and dirt.ratio >= settings.dirty_ratio:
        return True
    lag = settings.max_lag
    if lag is not None and dirt.oldest_dirty is not None and now - dirt.oldest_dirty >= lag // _MS:
        return True
    return any(_has_due_tombstones(part, view.clean_until, settings, clock) for part in parts)


def _has_due_tombstones(
    part: Part, clean_until: int, settings: CompactionSettings, clock: StoreClock
) -> bool:
    met = part.meta.met
    if met == NOT_A_TOMBSTONE:
        return False
    if met == NOT_MET:
        # Met before, but the time is lost: a compaction has to meet them anew.
        return part.meta.last < clean_until
    return clock.elapsed() - met >= settings.tombstone_retention // _MS


class Pace:
    """Holds work back to some bytes per second."""

    def __init__(self, bytes_per_second: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rate = bytes_per_second
        self._sleep = sleep
        self._begun = time.monotonic()
        self._done = 0

    def __call__(self, count: int) -> None:
        """Take note of bytes, and wait until they are due."""
        self._done += count
        early = self._begun + self._done / self._rate - time.monotonic()
        if early > 0:
            self._sleep(early)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one compaction works on."""

    parts: tuple[Part, ...]
    clean_until: int
    rounds: Rounds
    horizon: Horizon
    place: Place

    def run(self, publish: Callable[[list[Part], int], None]) -> CompactionReport:
        """Compact, and publish the new files in the place of the old ones.

        Raises
        ------
        CorruptLogError
            A record to copy is damaged: nothing was changed.
        StoreError
            The disk did not take the output: nothing was changed.
        """
        begun = time.perf_counter()
        place = self.place
        marked = mark(
            self.parts,
            self.clean_until,
            place.digest_mark,
            self.rounds,
            self.horizon,
            place.check,
        )
        outputs = Outputs(place, lambda index: self.horizon.stamped(index, marked.clean_until))
        try:
            made = self._write(marked, outputs)
        except Exception:
            outputs.discard()
            raise
        if made != list(self.parts) or marked.clean_until != self.clean_until:
            try:
                publish(made, marked.clean_until)
            except StoreFailedError:
                # Which manifest a power cut would leave is not known: the files of both stay.
                raise
            except Exception:
                outputs.discard()
                raise
        return self._report(marked, made, outputs.bytes_written, time.perf_counter() - begun)

    def _write(self, marked: Marked, outputs: Outputs) -> list[Part]:
        made: list[Part] = []
        for step in plan(marked.candidates, self.place.file_size):
            candidate = step.candidates[0]
            if not step.stays:
                made += outputs.rewrite(step.candidates)
            elif candidate.is_restamped:
                made.append(outputs.restamp(candidate.part))
            else:
                made.append(candidate.part)
        return made

    def _report(
        self, marked: Marked, made: list[Part], written: int, seconds: float
    ) -> CompactionReport:
        return CompactionReport(
            rounds=marked.rounds,
            records_in=sum(part.meta.count for part in self.parts),
            records_out=sum(part.meta.count for part in made),
            bytes_in=sum(part.meta.size for part in self.parts),
            bytes_out=sum(part.meta.size for part in made),
            bytes_written=written,
            tombstones_dropped=marked.tombstones_dropped,
            map_bytes=marked.map_bytes,
            map_keys=marked.map_keys,
            seconds=seconds,
        )
