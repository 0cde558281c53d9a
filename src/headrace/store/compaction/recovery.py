"""Opening a queue's log: what a crash left behind is cut off, removed or made again."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptLogError
from headrace.protocol.columns import Records, record_starts
from headrace.store.compaction.data_file import DataFile
from headrace.store.compaction.data_writer import SYNCED_SLOT, DataWriter
from headrace.store.compaction.entry_reader import damage_at, stretches, witness_behind
from headrace.store.compaction.manifest import (
    COPY_NAME,
    MANIFEST_NAME,
    FileMeta,
    Manifest,
    decode_checked,
    read_manifest,
)
from headrace.store.compaction.naming import data_path, index_path, keys_path, synced_path
from headrace.store.compaction.row_writer import (
    INDEX_HEADER,
    KEYS_HEADER,
    ROW_HEADER_SIZE,
    RowWriter,
    row_header,
)
from headrace.store.compaction.units import INDEX, KEY, describe
from headrace.store.compaction.view import Part, View
from headrace.store.fileops import rewrite

if TYPE_CHECKING:
    from headrace.store.compaction.digests import KeyDigest
    from headrace.store.fileops import FileOps

__all__ = ["Recovered", "derive", "paths_of", "recover", "remove_files"]

_log = logging.getLogger(__name__)

_GENERATION = re.compile(r"^\d+-(\d+)\.")


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A queue's log, ready to go on."""

    view: View
    writer: DataWriter
    #: Number of the newest file name in the folder.
    generation: int
    #: False for a queue that has no manifest yet.
    is_born: bool


def recover(folder: Path, ops: FileOps, digest: KeyDigest) -> Recovered:
    """Open what is in a folder.

    Raises
    ------
    CorruptLogError
        Bytes that were once on disk are damaged; nothing was changed.
    """
    manifest = read_manifest(folder, ops)
    is_born = manifest is not None
    manifest = manifest or Manifest(f"{0:020d}-1", digest.algorithm, digest.mark.hex())
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    found = [int(match[1]) for match in map(_GENERATION.match, names) if match]
    active = _recover_active(folder, manifest.active, ops, digest)
    _remove_strangers(folder, names, manifest, active.meta, ops)
    closed = tuple(
        Part(meta, DataFile(folder, meta, ops, good_from=meta.size)) for meta in manifest.files
    )
    meta = active.meta
    log_end = max(manifest.log_end, meta.last + 1 if meta.count else 0)
    # Beyond the end it cannot be true, and believed it would end compaction for good.
    clean_until = manifest.clean_until if manifest.clean_until <= log_end else 0
    view = View(closed, active, log_end, clean_until)
    writer = DataWriter(folder, meta, digest.mark, ops, is_new=meta.count == 0)
    return Recovered(view, writer, max([manifest.generation, *found]), is_born)


def paths_of(folder: Path, meta: FileMeta) -> list[Path]:
    """Name the files that belong to one data file."""
    return [
        data_path(folder, meta.name),
        index_path(folder, meta),
        keys_path(folder, meta),
        synced_path(folder, meta.name),
    ]


def remove_files(paths: list[Path], ops: FileOps) -> list[Path]:
    """Remove files, and give back those that could not be removed."""
    left = []
    for path in paths:
        try:
            ops.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("could not remove %s, will try again: %s", path, error)
            left.append(path)
    return left


def _remove_strangers(
    folder: Path, names: set[str], manifest: Manifest, active: FileMeta, ops: FileOps
) -> None:
    """Remove what no manifest names: left by a crash."""
    known = {MANIFEST_NAME, COPY_NAME}
    for meta in manifest.files:
        known |= {path.name for path in paths_of(folder, meta)[:3]}
    known |= {path.name for path in paths_of(folder, active)}
    for name in sorted(names - known):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            ops.remove_tree(path)
        else:
            remove_files([path], ops)


def _recover_active(folder: Path, name: str, ops: FileOps, digest: KeyDigest) -> Part:
    """Take over what is noted as synced, walk over the rest, cut off a torn end."""
    empty = FileMeta(name)
    path = data_path(folder, name)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        if synced_path(folder, name).exists():
            # The note is written behind the data, so there was some.
            raise CorruptLogError(
                f"{path} is missing (from byte 0 on), but was once on disk",
                hint="put the file back from a copy, or repair the store",
            ) from None
        return Part(empty, DataFile(folder, empty, ops, good_from=0))
    noted = _noted(folder, empty, size, ops, digest) or empty
    writer = RowWriter(folder, noted, digest.mark, ops)
    try:
        end = derive(path, size, writer, digest, ops)
    finally:
        writer.close()
    if end < size:
        witness = witness_behind(path, end, size, ops)
        if witness is not None:
            raise CorruptLogError(
                f"{damage_at(path, end).message}; the entry at byte {witness.position} proves "
                "that it was once whole",
                hint="put the file back from a copy, or restore the queue from a replica",
            )
    if end < size or end > noted.size:
        _settle(path, noted.size, end, size, ops)
    meta = writer.meta
    file = DataFile(folder, meta, ops, good_from=noted.size)
    file.trust()
    return Part(meta, file)


def _settle(path: Path, begin: int, end: int, size: int, ops: FileOps) -> None:
    """Cut a torn end off, and make sure that what was found is on disk before it counts."""
    fd = ops.open(path, os.O_RDWR)
    try:
        if end < size:
            _log.warning("%s: cut a torn end of %d bytes off", path, size - end)
            ops.truncate(fd, end)
        rewrite(ops, fd, begin, end)
    finally:
        ops.close(fd)
    ops.sync_directory(path.parent)


def derive(path: Path, size: int, writer: RowWriter, digest: KeyDigest, ops: FileOps) -> int:
    """Make the rows of the records behind those that a writer knows; return where they end."""
    end = writer.meta.size
    for stretch in stretches(path, end, size, ops):
        for entry in stretch.entries:
            payload = stretch.payload(entry)
            rows = describe(Records(payload, record_starts(payload)), digest)
            rows.index["at"] += entry.payload_position
            end = entry.end
            writer.write(rows, end)
    return end


def _noted(
    folder: Path, empty: FileMeta, size: int, ops: FileOps, digest: KeyDigest
) -> FileMeta | None:
    """Read the newest note of what was synced that agrees with the files."""
    path = synced_path(folder, empty.name)
    try:
        content = ops.read_bytes(path)
    except FileNotFoundError:
        return None
    slots = [content[at : at + SYNCED_SLOT] for at in range(0, len(content), SYNCED_SLOT)]
    notes = [note for slot in slots if (note := decode_checked(slot, FileMeta)) is not None]
    for note in sorted(notes, key=lambda note: -note.count):
        if note.name == empty.name and note.size <= size and _agrees(folder, note, ops, digest):
            return note
    # Once ignored, it must not be believed later.
    with contextlib.suppress(OSError):
        ops.unlink(path)
    return None


def _agrees(folder: Path, note: FileMeta, ops: FileOps, digest: KeyDigest) -> bool:
    wanted = (
        (index_path(folder, note), INDEX_HEADER, INDEX.itemsize, note.index_crc),
        (keys_path(folder, note), KEYS_HEADER, KEY.itemsize, note.keys_crc),
    )
    for path, magic, row_size, crc in wanted:
        try:
            content = memoryview(ops.read_bytes(path))[: ROW_HEADER_SIZE + note.count * row_size]
        except OSError:
            return False
        if content[:ROW_HEADER_SIZE] != row_header(magic, digest.mark):
            return False
        if zlib.crc32(content) != crc:
            return False
    return True
