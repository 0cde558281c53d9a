"""Checks of what a store keeps beside its log: checkpoint, index files, staged parts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.store.damage.findings import Finding
from headrace.store.index import queue_folder
from headrace.store.index_files import UNIT
from headrace.store.staging import whole_bytes

if TYPE_CHECKING:
    from headrace.store.checkpoint import LoadedCheckpoint, SavedQueue
    from headrace.store.damage.ledger import Ledger
    from headrace.store.fileops import FileOps

__all__ = ["check_checkpoint", "check_index_files", "check_staged_parts"]

_DERIVED = "it is made again from the log at the next start; nothing is lost"
_REPLANNED = "a batch that was not committed yet is planned anew; nothing is lost"


def check_checkpoint(
    folder: Path, checkpoint: LoadedCheckpoint | None, ledger: Ledger
) -> Iterator[Finding]:
    """Hold a checkpoint against the log."""
    path = folder / "checkpoint"
    if checkpoint is None:
        if path.exists():
            yield Finding("damage", path, "does not match its checksum", _DERIVED)
        return
    if checkpoint.table.begin < ledger.begin:
        text = f"speaks of a log that begins at position {checkpoint.table.begin}"
        means = f"it begins at {ledger.begin} now: files were deleted by retention, or are lost"
        yield Finding("remark", path, text, means)
    if checkpoint.table.position > ledger.end:
        text = f"speaks of position {checkpoint.table.position}, the log ends at {ledger.end}"
        yield Finding("damage", path, text, "the end of the log is lost, or it is of another log")


def check_index_files(
    folder: Path, checkpoint: LoadedCheckpoint, ops: FileOps
) -> Iterator[Finding]:
    """Hold the index files against the checksums in a checkpoint."""
    units = checkpoint.table.file_units
    for saved in checkpoint.table.queues:
        place = queue_folder(folder / "index", (saved.topic, saved.queue_id), saved.birth)
        begin = saved.floor // units * units
        for number, crc in enumerate(saved.checksums):
            base = begin + number * units
            path = place / f"{base:020d}.idx"
            first, last = max(base, saved.floor), min(base + units, saved.count)
            text = _index_fault(path, first - base, last - base, crc, ops)
            if text is not None:
                what = f"{text} (offsets {first} to {last - 1} of {_name(saved)})"
                yield Finding("damage", path, what, _DERIVED)


def _index_fault(path: Path, first: int, last: int, crc: int, ops: FileOps) -> str | None:
    try:
        content = ops.read_bytes(path)[first * UNIT.itemsize : last * UNIT.itemsize]
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(content) < (last - first) * UNIT.itemsize:
        return "is too short"
    return None if zlib.crc32(content) == crc else "does not match its checksum"


def _name(saved: SavedQueue) -> str:
    return f"topic {saved.topic!r}, queue {saved.queue_id}"


def check_staged_parts(folder: Path, ops: FileOps) -> Iterator[Finding]:
    """Look for staged parts that do not end with a whole chunk."""
    for path in sorted((folder / "staging").glob("*/*.part")):
        try:
            content = ops.read_bytes(path)
            good = whole_bytes(path, content)
        except FileNotFoundError:
            continue  # dropped meanwhile
        except (OSError, HeadraceError) as error:
            yield Finding("damage", path, f"cannot be read: {error}", _REPLANNED)
            continue
        if good < len(content):
            size = len(content) - good
            text = "holds bytes that are no whole chunk"
            yield Finding("remark", path, text, _REPLANNED, offset=good, size=size)
