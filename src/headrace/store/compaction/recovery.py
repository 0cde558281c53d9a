"""Opening a queue's log: what a crash left behind is cut off, removed or made again."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import CorruptLogError
from headrace.protocol.layout import record_starts
from headrace.protocol.records import Records
from headrace.store.compaction.data_file import (
    INDEX,
    INDEX_HEADER,
    KEY,
    KEYS_HEADER,
    ROW_HEADER_SIZE,
    SYNCED_SLOT,
    DataFile,
    DataWriter,
    FileView,
    RowWriter,
    View,
    data_path,
    index_path,
    keys_path,
    row_header,
    synced_path,
)
from headrace.store.compaction.manifest import (
    COPY_NAME,
    MANIFEST_NAME,
    Damage,
    FileMeta,
    Manifest,
    decode_checked,
    read_manifest,
)
from headrace.store.compaction.offset_map import KeyDigest, describe
from headrace.store.entries import HEADER_SIZE, MAGIC, Entry, is_intact, parse_header
from headrace.store.fileops import FileOps, read_error, rewrite

# Walking a data file entry by entry, each checked, with reads instead of a mapping.
#
# A disk error is then an exception, and a file that shrinks meanwhile is a short read.

#: Bytes in memory at a time; a larger entry takes as much as it has.
WINDOW = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Whole entries that follow each other; the bytes are valid until the next one is asked for."""

    #: Position in the file of the first byte.
    position: int
    content: memoryview
    entries: list[Entry]

    @property
    def end(self) -> int:
        """One past the last byte's position in the file."""
        return self.position + len(self.content)

    def payload(self, entry: Entry) -> memoryview:
        """Return the records of an entry."""
        first = entry.payload_position - self.position
        return self.content[first : first + entry.payload_size]


def stretches(
    path: Path, first: int, size: int, ops: FileOps, *, window: int = WINDOW
) -> Iterator[EntryRun]:
    """Yield the entries of a file from one on, and stop at the first that is not intact.

    The caller knows by the end of the last stretch whether ``size`` was reached.

    Raises
    ------
    StoreError
        The disk could not be read.
    """
    try:
        fd = ops.open(path, os.O_RDONLY)
    except OSError as error:
        raise read_error(path, error) from error
    try:
        buffer = bytearray(min(window, max(size - first, 0)))
        filled, position = 0, first
        while position < size:
            filled = _fill(fd, buffer, filled, size - position, position, ops)
            entries, used, wanted = _parse(memoryview(buffer)[:filled], position)
            if entries:
                yield EntryRun(position, memoryview(buffer)[:used], entries)
                buffer[: filled - used] = buffer[used:filled]
                position, filled = position + used, filled - used
            elif position + wanted <= size and wanted > len(buffer):
                buffer = buffer[:filled] + bytearray(wanted - filled)
            else:
                return
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        ops.close(fd)


def _fill(fd: int, buffer: bytearray, filled: int, left: int, position: int, ops: FileOps) -> int:
    wanted = min(len(buffer), left)
    view = memoryview(buffer)
    while filled < wanted:
        got = ops.preadv(fd, [view[filled:wanted]], position + filled)
        if got == 0:
            break
        filled += got
    return filled


def _parse(content: memoryview, position: int) -> tuple[list[Entry], int, int]:
    """Return the intact entries at the beginning, their bytes, and what the next one needs."""
    entries: list[Entry] = []
    at = 0
    while (entry := parse_header(content, at, position + at)) is not None:
        size = HEADER_SIZE + entry.payload_size
        if at + size > len(content):
            return entries, at, size
        if not is_intact(entry, content, at):
            break
        entries.append(entry)
        at += size
    return entries, at, HEADER_SIZE


def witness_behind(path: Path, damaged: int, size: int, ops: FileOps) -> Entry | None:
    """Return an entry that proves that the bytes at a damaged position were once on disk."""
    at = damaged + 1
    while (found := _find_header(path, at, size, ops)) is not None:
        at = found + 1
        for stretch in stretches(path, found, size, ops):
            for entry in stretch.entries:
                if entry.synced > damaged:
                    return entry
            at = stretch.end
    return None


def next_intact(path: Path, at: int, size: int, ops: FileOps) -> int | None:
    """Return where the next intact entry begins, at or behind a position."""
    while (found := _find_header(path, at, size, ops)) is not None:
        for _ in stretches(path, found, size, ops):
            return found
        at = found + 1
    return None


def _find_header(path: Path, at: int, size: int, ops: FileOps) -> int | None:
    """Return where the next bytes are that look like the header of an entry at its place."""
    fd = ops.open(path, os.O_RDONLY)
    try:
        while at + HEADER_SIZE <= size:
            content = bytearray(min(WINDOW, size - at))
            filled = _fill(fd, content, 0, size - at, at, ops)
            found = content.find(MAGIC, 0, filled)
            while found >= 0 and found + HEADER_SIZE <= filled:
                if parse_header(content, found, at + found) is not None:
                    return at + found
                found = content.find(MAGIC, found + 1, filled)
            if filled < len(content) or filled < HEADER_SIZE:
                return None
            # A header may lie across the border to the next window.
            at += filled - HEADER_SIZE + 1
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        ops.close(fd)
    return None


def damage_at(path: Path, position: int) -> CorruptLogError:
    """Return the error that names the damaged entry of a data file."""
    return CorruptLogError(
        f"{path}: the entry at byte {position} does not match its checksum",
        hint="other messages stay readable; put the file back from a copy, or restore the queue "
        "from a replica",
    )


# Verification of whole files: reads everything, changes nothing, and tells what is damaged.


def inspect_folder(folder: Path, ops: FileOps) -> list[Damage]:
    """Check the log in a folder that nobody has open.

    The torn end that a crash leaves in the active file is not damage: the next start cuts it.
    """
    try:
        manifest = read_manifest(folder, ops)
    except CorruptLogError as error:
        return [Damage(folder / MANIFEST_NAME, 0, error.message)]
    if manifest is None:
        return []
    damage = [*_manifest(folder, ops), *inspect_files(folder, manifest.files, ops)]
    path = data_path(folder, manifest.active)
    synced = synced_size(folder, manifest.active, ops)
    if path.exists() or synced:
        damage += _tail(path, synced, ops)
    return damage


def inspect_files(folder: Path, metas: Iterable[FileMeta], ops: FileOps) -> list[Damage]:
    """Check files of a log against what is known of them."""
    damage: list[Damage] = []
    for meta in metas:
        path = data_path(folder, meta.name)
        damage += _entries(path, meta.size, ops)
        rows = (
            (index_path(folder, meta), INDEX.itemsize, meta.index_crc),
            (keys_path(folder, meta), KEY.itemsize, meta.keys_crc),
        )
        for derived, row_size, crc in rows:
            damage += _derived(derived, ROW_HEADER_SIZE + meta.count * row_size, crc, ops)
    return damage


def _entries(path: Path, size: int, ops: FileOps) -> Iterator[Damage]:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        yield Damage(path, 0, "the file is missing")
        return
    if found < size:
        yield Damage(path, found, f"the file ends here, {size} bytes belong to the log")
    size = min(size, found)
    end = 0
    while end < size:
        for stretch in stretches(path, end, size, ops):
            end = stretch.end
        if end < size:
            yield Damage(path, end, "the entry does not match its checksum")
            end = next_intact(path, end + 1, size, ops) or size


def synced_size(folder: Path, name: str, ops: FileOps) -> int:
    """Read up to where the active file was once on disk, by its own notes."""
    try:
        content = ops.read_bytes(synced_path(folder, name))
    except FileNotFoundError:
        return 0
    slots = [content[at : at + SYNCED_SLOT] for at in range(0, len(content), SYNCED_SLOT)]
    notes = [note for slot in slots if (note := decode_checked(slot, FileMeta)) is not None]
    return max((note.size for note in notes if note.name == name), default=0)


def _tail(path: Path, synced: int, ops: FileOps) -> Iterator[Damage]:
    size = path.stat().st_size if path.exists() else 0
    for damage in _entries(path, max(size, synced), ops):
        if damage.offset < synced or witness_behind(path, damage.offset, size, ops) is not None:
            yield damage


def _derived(path: Path, size: int, crc: int, ops: FileOps) -> Iterator[Damage]:
    try:
        content = ops.read_bytes(path)
    except FileNotFoundError:
        yield Damage(path, 0, "the file is missing; it is made again when it is needed")
        return
    if zlib.crc32(memoryview(content)[:size]) != crc:
        reason = "the file does not match its checksum; it is made again when it is needed"
        yield Damage(path, 0, reason)


def _manifest(folder: Path, ops: FileOps) -> Iterator[Damage]:
    path = folder / MANIFEST_NAME
    try:
        intact = decode_checked(ops.read_bytes(path), Manifest) is not None
    except FileNotFoundError:
        intact = False
    if not intact:
        yield Damage(path, 0, "the manifest is missing or damaged; its copy is used")


logger = logging.getLogger(__name__)

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
        FileView(meta, DataFile(folder, meta, ops, good_from=meta.size)) for meta in manifest.files
    )
    meta = active.meta
    log_end = max(manifest.log_end, meta.last + 1 if meta.count else 0)
    # Beyond the end it cannot be true, and believed it would end compaction for good.
    clean_until = manifest.clean_until if manifest.clean_until <= log_end else 0
    view = View(closed, active, log_end, clean_until)
    writer = DataWriter(folder, meta, digest.mark, ops, is_new=meta.count == 0)
    return Recovered(view, writer, max([manifest.generation, *found]), is_born)


def paths_of(folder: Path, meta: FileMeta) -> list[Path]:
    """Return the files that belong to one data file."""
    return [
        data_path(folder, meta.name),
        index_path(folder, meta),
        keys_path(folder, meta),
        synced_path(folder, meta.name),
    ]


def remove_files(paths: list[Path], ops: FileOps) -> list[Path]:
    """Remove files, and return those that could not be removed."""
    left = []
    for path in paths:
        try:
            ops.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("could not remove %s, will try again: %s", path, error)
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


def _recover_active(folder: Path, name: str, ops: FileOps, digest: KeyDigest) -> FileView:
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
        return FileView(empty, DataFile(folder, empty, ops, good_from=0))
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
    return FileView(meta, file)


def _settle(path: Path, begin: int, end: int, size: int, ops: FileOps) -> None:
    """Cut a torn end off, and make sure that what was found is on disk before it counts."""
    fd = ops.open(path, os.O_RDWR)
    try:
        if end < size:
            logger.warning("%s: cut a torn end of %d bytes off", path, size - end)
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
