"""One compaction of one queue: mark, write, publish."""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from headrace._setting import DeclaredSettings, setting
from headrace.errors import StoreFailedError
from headrace.protocol.layout import BORN_HOST_V6, as_bytes, at_each, slices
from headrace.store.compaction.data_file import (
    ENTRY_BYTES,
    NOT_A_TOMBSTONE,
    DataFile,
    DataWriter,
    FileView,
    IndexRows,
    KeyRows,
    RowWriter,
    UnitRows,
    View,
    make_name,
)
from headrace.store.compaction.manifest import CompactionReport, Dirt, FileMeta
from headrace.store.compaction.offset_map import NOT_MET, Candidate, Horizon, Marked, Rounds, mark
from headrace.store.compaction.recovery import (
    EntryRun,
    damage_at,
    paths_of,
    remove_files,
    stretches,
)
from headrace.store.fileops import FileOps, replace_file, write_error

# The clock of a store: wall time for people, elapsed time for promises.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Boot, milliseconds since boot and elapsed time when it was saved.
_SAVED = struct.Struct("<36sqq")
_CRC = struct.Struct("<I")


class StoreClock:
    """Wall time, and an age of the store that no jump of the wall clock changes.

    The age counts the time that the machine was up while the store existed.  What a crash of the
    machine takes from it makes promises last longer, never shorter.

    Parameters
    ----------
    elapsed
        The age to begin with, ms.

    Examples
    --------
    >>> clock = StoreClock(elapsed=1000)
    >>> clock.elapsed() >= 1000
    True
    """

    def __init__(self, elapsed: int = 0) -> None:
        self._begin = _since_boot() - elapsed

    @classmethod
    def open(cls, path: Path) -> Self:
        """Go on from what :meth:`save` wrote; an unreadable file counts as none."""
        try:
            content = path.read_bytes()
        except OSError:
            return cls()
        if len(content) != _SAVED.size + _CRC.size:
            return cls()
        saved = content[: _SAVED.size]
        if _CRC.unpack_from(content, _SAVED.size) != (zlib.crc32(saved),):
            return cls()
        boot, then, elapsed = _SAVED.unpack(saved)
        # Within one boot the time in which the store was closed counts, too.
        since = _since_boot() - then if boot == _boot() else 0
        return cls(elapsed + max(since, 0))

    def save(self, path: Path, ops: FileOps) -> None:
        """Keep the age for the next start; a file that is too old is only more careful."""
        saved = _SAVED.pack(_boot(), _since_boot(), self.elapsed())
        replace_file(ops, path, saved + _CRC.pack(zlib.crc32(saved)))

    def now(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def elapsed(self) -> int:
        """Age of the store, ms: jumps of the wall clock do not change it."""
        return _since_boot() - self._begin


def _since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _boot() -> bytes:
    try:
        return _BOOT_ID.read_bytes()[:36].ljust(36)
    except OSError:
        return bytes(36)


_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings(DeclaredSettings):
    """How the logs of compacted topics are kept.

    Raises
    ------
    SettingsError
        When a value cannot work.

    Examples
    --------
    >>> CompactionSettings().tombstone_retention
    datetime.timedelta(days=1)
    """

    VARIABLES = ""

    file_size: int = setting(
        128 * _MIB,
        doc="A file is closed before it grows beyond this size; a larger record has its own.",
        unit="bytes",
        minimum=1,
    )
    tombstone_retention: timedelta = setting(
        timedelta(hours=24),
        doc="How long a delete stays readable after the first compaction that met it; 0: that "
        "compaction removes it, as RocketMQ does.",
    )
    dirty_ratio: float = setting(
        0.5,
        doc="A queue is due when this share of its closed bytes has not been compacted yet.",
        maximum=1,
    )
    min_lag: timedelta = setting(timedelta(0), doc="Files with younger records are left alone.")
    max_lag: timedelta | None = setting(
        None,
        doc="A queue is due when it has an uncompacted closed record of this age.",
        nothing="none",
    )
    map_bytes: int = setting(
        64 * _MIB, doc="Hard bound on the memory of one offset map.", unit="bytes", minimum=1
    )
    threads: int = setting(1, doc="Queues that are compacted at the same time.", minimum=1)
    bytes_per_second: int | None = setting(
        None,
        doc="Bytes that one compaction reads and writes per second at most.",
        unit="bytes",
        minimum=1,
        nothing="none",
    )
    digest: Literal["blake2b", "md5"] = setting(
        "blake2b",
        doc="How keys are told apart: blake2b is keyed with a secret of the store, so that nobody "
        "can choose keys that collide; md5 is RocketMQ's.",
    )


# Rewriting: survivors go to new files, byte for byte and in order, every input entry checked.

_SYS_FLAG_AT = 36
_STORED_AT = 56
_V6_MORE = 12

_Stamp = Callable[[IndexRows], npt.NDArray[np.int64]]
"""Function that returns the times when rows were met."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where outputs go, and what they share."""

    folder: Path
    ops: FileOps
    digest_mark: bytes
    file_size: int
    #: Returns a number that no file has.
    number: Callable[[], int]
    #: Told of bytes that were read and written; may wait, may raise to stop it all.
    check: Callable[[int], None]


class NewFiles:
    """Makes new files; what it made is removed again unless it is published."""

    def __init__(self, place: OutputPlace, stamp: _Stamp) -> None:
        self._place = place
        self._stamp = stamp
        self._writer: DataWriter | None = None
        self._made: list[Path] = []
        self._waiting: list[tuple[memoryview, UnitRows]] = []
        self._waiting_bytes = 0
        self._parts: list[FileView] = []
        self.bytes_written = 0

    def rewrite(self, candidates: tuple[Candidate, ...]) -> list[FileView]:
        """Write the survivors of files to new ones, and put these on the disk.

        Raises
        ------
        CorruptLogError
            A record to copy is damaged; names the file and the place.
        StoreError
            The disk did not take the output.
        """
        self._parts = []
        for candidate in candidates:
            self._copy(candidate)
        self._flush()
        self._finish()
        return self._parts

    def restamp(self, part: FileView) -> FileView:
        """Make the derived files of a file anew, with the times when deletes were met."""
        place = self._place
        meta = msgspec.structs.replace(FileMeta(part.meta.name), derived=place.number())
        writer = RowWriter(place.folder, meta, place.digest_mark, place.ops)
        self._made += paths_of(place.folder, meta)[1:3]
        index = part.file.index(part.meta)
        try:
            for first, keys in part.file.key_chunks(part.meta, place.digest_mark):
                rows = index[first : first + len(keys)].copy()
                rows["met"] = self._stamp(rows)
                stored = np.array([part.meta.oldest, part.meta.newest])
                writer.write(UnitRows(rows, keys, stored), part.meta.size)
                place.check(rows.nbytes + keys.nbytes)
            writer.sync()
        except OSError as error:
            raise write_error(place.ops, part.file.path, error) from error
        finally:
            writer.close()
        self.bytes_written += sum(path.stat().st_size for path in self._made[-2:])
        return FileView(writer.meta, part.file.with_derived(writer.meta))

    def discard(self) -> None:
        """Remove what was made."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.release()
        remove_files(self._made, self._place.ops)

    def _copy(self, candidate: Candidate) -> None:
        part, place = candidate.part, self._place
        end = row = 0
        for stretch in stretches(part.file.path, 0, part.meta.size, place.ops):
            count = sum(entry.count for entry in stretch.entries)
            place.check(len(stretch.content))
            self._keep(candidate, stretch, row, row + count)
            row, end = row + count, stretch.end
        if end < part.meta.size:
            raise damage_at(part.file.path, end)

    def _keep(self, candidate: Candidate, stretch: EntryRun, first: int, last: int) -> None:
        kept = candidate.kept(first, last)
        if not kept.any():
            return
        part = candidate.part
        index: IndexRows = part.file.index(part.meta)[first:last][kept]
        keys: KeyRows = part.file.key_rows(part.meta, self._place.digest_mark, first, last)[kept]
        starts = index["at"] - stretch.position
        rows = UnitRows(index, keys, _stored(stretch.content, starts))
        index["met"] = self._stamp(index)
        self._add(_joined(stretch.content, starts, index["size"]), rows)

    def _add(self, payload: memoryview, rows: UnitRows) -> None:
        self._waiting.append((payload, rows))
        self._waiting_bytes += len(payload)
        if self._waiting_bytes >= ENTRY_BYTES:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        payload, rows = waiting[0]
        if len(waiting) > 1:
            payload = memoryview(b"".join(piece for piece, _ in waiting))
            rows = UnitRows(
                np.concatenate([each.index for _, each in waiting]),
                np.concatenate([each.keys for _, each in waiting]),
                np.concatenate([each.stored for _, each in waiting]),
            )
        writer = self._writer
        if writer is not None and writer.meta.size + len(payload) > self._place.file_size:
            self._finish()
            writer = None
        writer = writer or self._begin(int(rows.index["offset"][0]))
        writer.write(payload, rows)
        self._place.check(len(payload))

    def _begin(self, offset: int) -> DataWriter:
        place = self._place
        meta = FileMeta(make_name(offset, place.number()))
        self._made += paths_of(place.folder, meta)[:3]
        # The folder is synced when the manifest is published.
        self._writer = DataWriter(place.folder, meta, place.digest_mark, place.ops, is_new=False)
        return self._writer

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.sync(rows=True)
        finally:
            writer.release()
        file = DataFile(self._place.folder, writer.meta, self._place.ops, good_from=0)
        self._parts.append(FileView(writer.meta, file))
        self.bytes_written += writer.meta.size


def _joined(
    content: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> memoryview:
    """Put records end to end; neighbours are copied as one."""
    ends = starts + sizes
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    firsts = starts[np.concatenate(([0], breaks))]
    lasts = ends[np.concatenate((breaks - 1, [len(ends) - 1]))]
    data = slices(content, firsts, lasts).buffers()[2]
    return memoryview(data)[: int(sizes.sum(dtype=np.int64))]


def _stored(content: memoryview, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Read the store times of records."""
    cells = as_bytes(content)
    flags = at_each(cells, ">i4", starts + _SYS_FLAG_AT)
    places = starts + _STORED_AT + np.where(flags & BORN_HOST_V6, _V6_MORE, 0)
    return at_each(cells, ">i8", places).astype(np.int64)


# Planning: which files are written anew, which together, and which stay as they are.

#: A file that loses nothing joins a neighbour only if it is at most so many times as large: or
#: one large file would be copied for every small one that closes behind it.
_MAX_RATIO = 3


@dataclass(frozen=True, slots=True)
class CompactionStep:
    """Files that become one, or one that stays."""

    candidates: tuple[Candidate, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes that survive."""
        return sum(candidate.kept_bytes for candidate in self.candidates)

    @property
    def stays(self) -> bool:
        """Whether it is one file that loses nothing."""
        return len(self.candidates) == 1 and _is_whole(self.candidates[0])


def plan(candidates: Sequence[Candidate], file_size: int) -> list[CompactionStep]:
    """Group neighbours whose survivors fit into one file; files without survivors are left out."""
    steps: list[CompactionStep] = []
    for candidate in candidates:
        if not candidate.kept_count:
            continue
        if steps and _may_join(steps[-1], candidate, file_size):
            steps[-1] = CompactionStep((*steps[-1].candidates, candidate))
        else:
            steps.append(CompactionStep((candidate,)))
    return steps


def _may_join(step: CompactionStep, candidate: Candidate, file_size: int) -> bool:
    before, here = step.kept_bytes, candidate.kept_bytes
    if before + here > file_size:
        return False
    if step.stays and before > _MAX_RATIO * here:
        return False
    return not (_is_whole(candidate) and here > _MAX_RATIO * before)


def _is_whole(candidate: Candidate) -> bool:
    return candidate.kept_count == candidate.part.meta.count


_MS = timedelta(milliseconds=1)


def candidates_of(
    view: View, now: int, settings: CompactionSettings, *, force: bool, below: int | None = None
) -> tuple[FileView, ...]:
    """Choose the files to compact: closed ones from the oldest on, none of them too young."""
    youngest = now - settings.min_lag // _MS
    chosen: list[FileView] = []
    for part in view.closed:
        if not force and settings.min_lag and part.meta.newest > youngest:
            break
        if below is not None and part.meta.last >= below:
            break
        chosen.append(part)
    return tuple(chosen)


def dirt_of(parts: tuple[FileView, ...], clean_until: int) -> Dirt:
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
    """Return whether a queue is worth a compaction now."""
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
    part: FileView, clean_until: int, settings: CompactionSettings, clock: StoreClock
) -> bool:
    met = part.meta.met
    if met == NOT_A_TOMBSTONE:
        return False
    if met == NOT_MET:
        # Met before, but the time is lost: a compaction has to meet them anew.
        return part.meta.last < clean_until
    return clock.elapsed() - met >= settings.tombstone_retention // _MS


class RateLimit:
    """Holds work back to some bytes per second."""

    def __init__(self, bytes_per_second: int, sleep: Callable[[float], None] | None = None) -> None:
        self._rate = bytes_per_second
        self._sleep = sleep or time.sleep
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

    parts: tuple[FileView, ...]
    clean_until: int
    rounds: Rounds
    horizon: Horizon
    place: OutputPlace

    def run(self, publish: Callable[[list[FileView], int], None]) -> CompactionReport:
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
        outputs = NewFiles(place, lambda index: self.horizon.stamped(index, marked.clean_until))
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

    def _write(self, marked: Marked, outputs: NewFiles) -> list[FileView]:
        made: list[FileView] = []
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
        self, marked: Marked, made: list[FileView], written: int, seconds: float
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
