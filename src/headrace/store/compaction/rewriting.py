"""Rewriting: survivors go to new files, byte for byte and in order, every input entry checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.protocol.layout import as_bytes, at_each, slices
from headrace.store.compaction.data_file import DataFile
from headrace.store.compaction.data_writer import ENTRY_BYTES, DataWriter
from headrace.store.compaction.entry_reader import damage_at, stretches
from headrace.store.compaction.manifest import FileMeta
from headrace.store.compaction.naming import make_name
from headrace.store.compaction.recovery import paths_of, remove_files
from headrace.store.compaction.row_writer import RowWriter
from headrace.store.compaction.units import IndexRows, KeyRows, Rows
from headrace.store.compaction.view import Part
from headrace.store.fileops import write_error
from headrace.store.record import BORN_HOST_V6

if TYPE_CHECKING:
    from headrace.store.compaction.entry_reader import Stretch
    from headrace.store.compaction.marking import Candidate
    from headrace.store.fileops import FileOps

__all__ = ["Outputs", "Place"]

_SYS_FLAG_AT = 36
_STORED_AT = 56
_V6_MORE = 12

_Stamp = Callable[[IndexRows], npt.NDArray[np.int64]]
"""Gives the times when rows were met."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where outputs go, and what they share."""

    folder: Path
    ops: FileOps
    digest_mark: bytes
    file_size: int
    #: Gives a number that no file has.
    number: Callable[[], int]
    #: Told of bytes that were read and written; may wait, may raise to stop it all.
    check: Callable[[int], None]


class Outputs:
    """Makes new files; what it made is removed again unless it is published."""

    def __init__(self, place: Place, stamp: _Stamp) -> None:
        self._place = place
        self._stamp = stamp
        self._writer: DataWriter | None = None
        self._made: list[Path] = []
        self._waiting: list[tuple[memoryview, Rows]] = []
        self._waiting_bytes = 0
        self._parts: list[Part] = []
        self.bytes_written = 0

    def rewrite(self, candidates: tuple[Candidate, ...]) -> list[Part]:
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

    def restamp(self, part: Part) -> Part:
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
                writer.write(Rows(rows, keys, stored), part.meta.size)
                place.check(rows.nbytes + keys.nbytes)
            writer.sync()
        except OSError as error:
            raise write_error(place.ops, part.file.path, error) from error
        finally:
            writer.close()
        self.bytes_written += sum(path.stat().st_size for path in self._made[-2:])
        return Part(writer.meta, part.file.with_derived(writer.meta))

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

    def _keep(self, candidate: Candidate, stretch: Stretch, first: int, last: int) -> None:
        kept = candidate.kept(first, last)
        if not kept.any():
            return
        part = candidate.part
        index: IndexRows = part.file.index(part.meta)[first:last][kept]
        keys: KeyRows = part.file.key_rows(part.meta, self._place.digest_mark, first, last)[kept]
        starts = index["at"] - stretch.position
        rows = Rows(index, keys, _stored(stretch.content, starts))
        index["met"] = self._stamp(index)
        self._add(_joined(stretch.content, starts, index["size"]), rows)

    def _add(self, payload: memoryview, rows: Rows) -> None:
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
            rows = Rows(
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
        self._parts.append(Part(writer.meta, file))
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
