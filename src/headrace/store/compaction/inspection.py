"""Verification of whole files: reads everything, changes nothing, and tells what is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptLogError
from headrace.store.compaction.data_writer import SYNCED_SLOT
from headrace.store.compaction.entry_reader import next_intact, stretches, witness_behind
from headrace.store.compaction.manifest import (
    MANIFEST_NAME,
    FileMeta,
    Manifest,
    decode_checked,
    read_manifest,
)
from headrace.store.compaction.naming import data_path, index_path, keys_path, synced_path
from headrace.store.compaction.reports import Damage
from headrace.store.compaction.row_writer import ROW_HEADER_SIZE
from headrace.store.compaction.units import INDEX, KEY

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps

__all__ = ["inspect_files", "inspect_folder", "synced_size"]


def inspect_folder(folder: Path, ops: FileOps) -> list[Damage]:
    """Check the log in a folder that nobody has open.

    The torn end that a crash leaves in the active file is no damage: the next start cuts it.
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
