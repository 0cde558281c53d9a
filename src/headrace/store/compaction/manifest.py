"""The manifest: which files a queue's log consists of.

Publishing one is the only commit point of rolls and compactions.  A file that no manifest names
is garbage.  A second copy, written after the first, serves when the first one is damaged.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.errors import CorruptLogError
from headrace.store.fileops import FileOps, write_all

# What a compaction log tells: reads, dirt, reports, damage.


@dataclass(frozen=True, slots=True)
class QueueRead:
    """Stored records of one queue; the slices stay valid when their file is compacted away."""

    #: ``FOUND``, ``NO_MATCH``, ``AT_END`` or ``BEYOND``.
    status: ReadStatus
    slices: list[memoryview]
    count: int
    #: Where the next read goes on.
    next_offset: int
    #: First readable offset, and one past the last offset ever given.
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Dirt:
    """How much of the closed files no compaction has covered."""

    clean_bytes: int
    dirty_bytes: int
    #: Store time of the oldest uncompacted closed record, ms since 1970.
    oldest_dirty: int | None

    @property
    def ratio(self) -> float:
        """Share of the closed bytes that is dirty.

        >>> Dirt(100, 300, None).ratio
        0.75
        """
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What one compaction did."""

    #: Offset maps that were filled, one after the other.
    rounds: int
    #: Records and bytes of the closed files, before and after.
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    #: Bytes that were written: files that lose nothing are not.
    bytes_written: int
    #: Deletes that were removed because their retention was over.
    tombstones_dropped: int
    #: Memory of the offset map, and the keys that it held in all rounds together.
    map_bytes: int
    map_keys: int
    seconds: float

    @classmethod
    def nothing(cls) -> CompactionReport:
        """Report that there was nothing to do.

        >>> CompactionReport.nothing().rounds
        0
        """
        return cls(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not what was written."""

    path: Path
    #: Where in the file.
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLogStatistics:
    """A queue's log at one moment."""

    files: int
    records: int
    bytes: int
    #: Records without a key: kept, because nothing can supersede them.
    keyless: int
    tombstones: int
    #: Everything below was compacted.
    clean_until: int


MANIFEST_NAME = "MANIFEST"
COPY_NAME = "MANIFEST.copy"
_TEMPORARY = ".tmp"
_FORMAT = 1


class FileMeta(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one data file and the two files derived from it."""

    #: Name of the data file without its suffix.
    name: str
    #: Number of the derived files: they are made anew beside a data file that stays.
    derived: int = 0
    #: First and last queue offset; meaningless without records.
    first: int = 0
    last: int = -1
    count: int = 0
    #: Bytes of the data file that belong to the log.
    size: int = 0
    #: Checksums of the derived files.
    index_crc: int = 0
    keys_crc: int = 0
    keyless: int = 0
    tombstones: int = 0
    #: When the first of the deletes was met; ``NOT_MET`` while there are some that were not.
    met: int = -2
    #: Lowest and highest store time, ms since 1970.
    oldest: int = 0
    newest: int = 0


class Manifest(msgspec.Struct, frozen=True):
    """The files of a queue's log, in the order of their offsets, and what else must last."""

    #: The file that is appended to; it may not exist yet.
    active: str
    #: How the keys of the sidecars were digested, and a mark of algorithm and secret.
    digest: str
    mark: str
    files: tuple[FileMeta, ...] = ()
    #: The next offset is never below this.
    log_end: int = 0
    #: Every record below was compacted.
    clean_until: int = 0
    #: Number of the newest file name.
    generation: int = 1
    format: int = _FORMAT


def encode_checked(value: msgspec.Struct) -> bytes:
    """Encode a value as a line of JSON behind its checksum.

    >>> encode_checked(FileMeta("0-1"))[8:20]
    b' ["0-1",0,0,'
    """
    body = msgspec.json.encode(value)
    return b"%08x %s\n" % (zlib.crc32(body), body)


_Checked = TypeVar("_Checked", bound=msgspec.Struct)


def decode_checked(line: bytes, kind: type[_Checked]) -> _Checked | None:
    """Decode what :func:`encode_checked` made; None when it is damaged.

    >>> decode_checked(encode_checked(FileMeta("0-1")), FileMeta).name
    '0-1'
    >>> decode_checked(b"half a line", FileMeta)
    """
    body = line[9:].rstrip(b"\n\0")
    try:
        if int(line[:8], 16) != zlib.crc32(body):
            return None
        return msgspec.json.decode(body, type=kind)
    except ValueError:
        return None


def read_manifest(folder: Path, ops: FileOps) -> Manifest | None:
    """Read a queue's manifest; None for a queue that has none yet.

    Raises
    ------
    CorruptLogError
        There are data files, but neither the manifest nor its copy can be read.
    """
    path = folder / MANIFEST_NAME
    for name in (MANIFEST_NAME, COPY_NAME):
        try:
            found = decode_checked(ops.read_bytes(folder / name), Manifest)
        except FileNotFoundError:
            continue
        if found is not None:
            return _known(found, path)
    if path.exists() or any(folder.glob("*.data")):
        raise CorruptLogError(
            f"{path} is damaged or missing (byte 0), and so is its copy: it is not known which "
            f"files of the folder belong to the log",
            hint="put MANIFEST or MANIFEST.copy back from a copy of this folder, or restore the "
            "queue from a replica",
        )
    return None


def _known(manifest: Manifest, path: Path) -> Manifest:
    if manifest.format != _FORMAT:
        raise CorruptLogError(
            f"{path} has format {manifest.format}, this release reads format {_FORMAT}",
            hint="open the store with the release that wrote it",
        )
    return manifest


def publish(folder: Path, manifest: Manifest, ops: FileOps) -> OSError | None:
    """Make a manifest the valid one, on disk on return.

    Returns
    -------
    OSError or None
        An error after which it is unknown which of the two manifests a power cut would leave:
        the files of both must then be kept.

    Raises
    ------
    OSError
        Nothing was changed: the manifest before is valid.
    """
    content = encode_checked(manifest)
    _write(folder, MANIFEST_NAME, content, ops, sync=True)
    try:
        ops.sync_directory(folder)
    except OSError as error:
        return error
    # Best effort, and never waited for: without it damage is reported instead of healed.
    with contextlib.suppress(OSError):
        _write(folder, COPY_NAME, content, ops, sync=False)
    return None


def _write(folder: Path, name: str, content: bytes, ops: FileOps, *, sync: bool) -> None:
    temporary = folder / (name + _TEMPORARY)
    try:
        fd = ops.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(ops, fd, [content], 0)
            if sync:
                ops.fdatasync(fd)
        finally:
            ops.close(fd)
        ops.rename(temporary, folder / name)
    except OSError:
        with contextlib.suppress(OSError):
            ops.unlink(temporary)
        raise


class ReadStatus(Enum):
    """Outcome of a read."""

    #: There are messages.
    FOUND = "found"
    #: Messages were looked at, none has one of the tags.
    NO_MATCH = "no match"
    #: The offset is the next one to be written.
    AT_END = "at end"
    #: The queue holds no message.
    EMPTY = "empty"
    #: The offset is beyond the next one to be written.
    BEYOND = "beyond"
    #: The offset is before the first that the queue still holds.
    BELOW_MIN = "below min"
