"""Staging: records that tasks handed over, durable enough for a commit and seen by no reader.

Each attempt of each task has one file, a sequence of checked chunks.  The files are not synced:
a part that a power cut damaged is missing afterwards, and its batch is planned anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidParameterError, ProtocolError, StagedPartMissingError
from headrace.protocol import transactions
from headrace.protocol.layout import are_of_one_queue, check_sizes, locate, queue_of, record_starts
from headrace.protocol.records import Records
from headrace.protocol.stamps import tag_hashes
from headrace.store import fileops
from headrace.store.entries import QueueAppend

if TYPE_CHECKING:
    from headrace.store.entries import QueueKey
    from headrace.store.settings import StoreSettings


logger = logging.getLogger(__name__)

RUN_BYTES = 4 * 1024 * 1024
"""A run of several records, and the entry that it becomes a part of, are no larger."""

_SUFFIX = ".part"
_MAGIC = b"HRSC"
#: Magic, chunk number, body size, records; CRC-32 of the file's name, these fields and the body:
#: what a disk shows of another file after a power cut counts as damaged.
_FIELDS = struct.Struct("<4sIII")
_CRC = struct.Struct("<I")
_HEADER_SIZE = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True, order=True)
class StageKey:
    """Who staged: one attempt of one task."""

    job: str
    epoch: int
    batch: int
    stage: int
    partition: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StagedRun:
    """Records of one queue, end to end in a staged file; at least one."""

    path: Path
    topic: str
    queue_id: int
    #: Where the records begin in the file, and their bytes.
    offset: int
    size: int
    #: CRC-32 of these bytes as they were handed over.
    crc: int
    #: Begin of each record, counted from the first, and the hash of its tag.
    starts: npt.NDArray[np.int64]
    tags: npt.NDArray[np.int32]


@dataclass(slots=True)
class _Chunk:
    crc: int
    records: int
    runs: list[StagedRun]


@dataclass(slots=True)
class _Part:
    path: Path
    size: int = 0
    chunks: dict[int, _Chunk] = field(default_factory=dict)


class Staging:
    """The staged parts of all jobs; any thread may call."""

    def __init__(self, folder: Path, ops: fileops.FileOps, settings: StoreSettings) -> None:
        self._folder = folder
        self._ops = ops
        self._settings = settings
        self._lock = threading.Lock()
        self._parts: dict[StageKey, _Part] = {}
        #: Number of parts, and their bytes, by job.
        self._sums: dict[str, tuple[int, int]] = {}
        for path in sorted(folder.glob("*/*" + _SUFFIX)):
            self._reload(path)

    @property
    def statistics(self) -> tuple[int, int]:
        """Number of parts, and their bytes."""
        with self._lock:
            return len(self._parts), sum(part.size for part in self._parts.values())

    def stage(self, key: StageKey, number: int, body: fileops.Buffer) -> None:
        """Keep one chunk of a part; see :meth:`MessageStore.stage`."""
        with self._lock:
            part = self._parts.get(key) or _Part(self._path(key))
            header, chunk = _make_chunk(part, number, body)
            for run in chunk.runs:
                check_sizes(run.starts, run.size, self._settings.max_message_size)
            known = part.chunks.get(number)
            if known is not None:
                if known.crc == chunk.crc:
                    return
                raise InvalidParameterError(
                    f"chunk {number} of {key} was staged before with other content",
                    hint="every attempt needs an attempt number of its own",
                )
            self._write(part, [header, body])
            size = len(header) + len(body)
            part.size += size
            part.chunks[number] = chunk
            self._count(key.job, key not in self._parts, size)
            self._parts[key] = part

    def staged(self, key: StageKey) -> tuple[int, int]:
        """Count the chunks and the records of a part; nothing staged is (0, 0)."""
        with self._lock:
            part = self._parts.get(key)
            chunks = list(part.chunks.values()) if part else []
        return len(chunks), sum(chunk.records for chunk in chunks)

    def size(self, key: StageKey) -> int:
        """Return the bytes of a part; 0 where nothing was staged."""
        part = self._parts.get(key)
        return 0 if part is None else part.size

    def sums(self) -> dict[str, tuple[int, int]]:
        """Count the parts that jobs have staged, and their bytes; of those that have any."""
        return dict(self._sums)

    def waiting(self, job: str) -> list[transactions.StagedBatch]:
        """Sum up what a job has staged, by epoch and batch."""
        sums: dict[tuple[int, int], list[int]] = {}
        with self._lock:
            for key, part in self._parts.items():
                if key.job == job:
                    records = sum(chunk.records for chunk in part.chunks.values())
                    found = sums.setdefault((key.epoch, key.batch), [0, 0, 0])
                    sums[key.epoch, key.batch] = [
                        found[0] + 1,
                        found[1] + records,
                        found[2] + part.size,
                    ]
        return [
            transactions.StagedBatch(
                epoch=epoch, batch=batch, parts=parts, records=records, size=size
            )
            for (epoch, batch), (parts, records, size) in sorted(sums.items())
        ]

    def runs(self, key: StageKey) -> list[StagedRun]:
        """Return the runs of a part in the order in which they were staged.

        Raises
        ------
        StagedPartMissingError
            When nothing was staged under the key, or a chunk in between is missing.
        """
        with self._lock:
            part = self._parts.get(key)
            numbers = sorted(part.chunks) if part else []
            if part is None or numbers != list(range(len(numbers))):
                raise StagedPartMissingError(
                    f"staged part {key} is not here: {len(numbers)} chunks held",
                    hint="the broker lost it with a restart or swept it; plan the batch anew",
                )
            return [run for number in numbers for run in part.chunks[number].runs]

    def drop(self, job: str, keep: Callable[[StageKey], bool]) -> int:
        """Remove the parts of a job that are not to be kept, and return how many there were."""
        with self._lock:
            doomed = [key for key in self._parts if key.job == job and not keep(key)]
            for key in doomed:
                part = self._parts.pop(key)
                self._count(job, -1, -part.size)
                self._remove(part.path)
        return len(doomed)

    def _count(self, job: str, parts: int, size: int) -> None:
        held = self._sums.pop(job, (0, 0))
        if now := held[0] + parts:
            self._sums[job] = now, held[1] + size

    def _path(self, key: StageKey) -> Path:
        numbers = (key.epoch, key.batch, key.stage, key.partition, key.attempt)
        return self._folder / quote(key.job, safe="") / ("-".join(map(str, numbers)) + _SUFFIX)

    def _write(self, part: _Part, buffers: list[fileops.Buffer]) -> None:
        fd = -1
        try:
            self._ops.make_directory(part.path.parent)
            fd = self._ops.open(part.path, os.O_WRONLY | os.O_CREAT)
            size = sum(map(len, buffers))
            fileops.require_space(self._ops, self._folder, size, self._settings.min_free_space)
            fileops.write_all(self._ops, fd, buffers, part.size)
        except OSError as error:
            self._undo(part, fd)
            raise fileops.write_error(self._ops, part.path, error) from error
        finally:
            if fd >= 0:
                self._ops.close(fd)

    def _undo(self, part: _Part, fd: int) -> None:
        # If this fails, too: the next chunk is written over it, and a load checks every chunk.
        with contextlib.suppress(OSError):
            if fd >= 0:
                self._ops.truncate(fd, part.size)

    def _remove(self, path: Path) -> None:
        # What stays is found again at the next start, and holds nothing that readers see.
        with contextlib.suppress(OSError):
            self._ops.unlink(path)

    def _reload(self, path: Path) -> None:
        try:
            numbers = [int(number) for number in path.stem.split("-")]
            key = StageKey(unquote(path.parent.name), *numbers)
        except (ValueError, TypeError):
            return
        part = _Part(path)
        try:
            content = self._ops.read_bytes(path)
        except OSError as error:
            # Its batch is planned anew, as after a part that a power cut damaged.
            logger.warning("%s", fileops.read_error(path, error))
            return
        for number, body in _chunks(path, content):
            _, chunk = _make_chunk(part, number, body)
            part.chunks[number] = chunk
            part.size += _HEADER_SIZE + len(body)
        if part.chunks:
            self._count(key.job, 1, part.size)
            self._parts[key] = part
        else:
            self._remove(path)


def _make_chunk(part: _Part, number: int, body: fileops.Buffer) -> tuple[bytes, _Chunk]:
    runs = list(_runs(part.path, part.size + _HEADER_SIZE, body))
    records = sum(len(run.starts) for run in runs)
    fields = _FIELDS.pack(_MAGIC, number, len(body), records)
    crc = _checksum(part.path, fields, body)
    return fields + _CRC.pack(crc), _Chunk(crc, records, runs)


def _runs(path: Path, at: int, body: fileops.Buffer) -> Iterator[StagedRun]:
    end = at + len(body)
    try:
        for section in transactions.decode_sections(memoryview(body)):
            head = transactions.StagedSection(section.topic, section.queue_id, section.count, b"")
            at += len(transactions.encode_sections([head]))
            starts = record_starts(section.records)
            _check_section(section, starts)
            yield from _section_runs(path, at, section, starts)
            at += len(section.records)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"a staged chunk is malformed: {error}") from error
    if at != end:
        raise ProtocolError(f"a staged chunk ends {at - end} bytes beyond its body")


def _section_runs(
    path: Path, at: int, section: transactions.StagedSection, starts: npt.NDArray[np.int64]
) -> Iterator[StagedRun]:
    records = memoryview(section.records)
    tags = tag_hashes(Records(records, starts))
    ends = np.append(starts[1:], len(records))
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = max(int(np.searchsorted(ends, begin + RUN_BYTES, side="right")), first + 1)
        end = int(ends[last - 1])
        yield StagedRun(
            path,
            section.topic,
            section.queue_id,
            at + begin,
            end - begin,
            zlib.crc32(records[begin:end]),
            starts[first:last] - begin,
            tags[first:last],
        )
        first = last


def appends_in(body: fileops.Buffer) -> list[QueueAppend]:
    """Return the records of a staged body as they are appended, once they were checked.

    Raises
    ------
    ProtocolError
        The body is malformed, or holds records of other queues than it says.
    """
    found = []
    try:
        for section in transactions.decode_sections(memoryview(body)):
            records = Records(bytearray(section.records), record_starts(section.records))
            _check_section(section, records.starts)
            found.append(QueueAppend(section.topic, section.queue_id, records))
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"a part within a commit is malformed: {error}") from error
    return found


def _check_section(section: transactions.StagedSection, starts: npt.NDArray[np.int64]) -> None:
    wanted, count = (section.topic, section.queue_id), len(starts)
    if count == 1:
        # More than one are looked at below.
        locate(section.records, starts)
    mixed = count and (
        queue_of(section.records) != wanted or not are_of_one_queue(section.records, starts)
    )
    if count != section.count or mixed:
        raise ProtocolError(
            f"a staged section names {section.count} records for queue {wanted}, "
            f"but holds {count} or others"
        )


def _checksum(path: Path, fields: fileops.Buffer, body: fileops.Buffer) -> int:
    name = f"{path.parent.name}/{path.name}".encode()
    return zlib.crc32(body, zlib.crc32(fields, zlib.crc32(name)))


def whole_bytes(path: Path, content: bytes) -> int:
    """Count the bytes of a part's file up to the first chunk that is not whole."""
    return sum(_HEADER_SIZE + len(body) for _, body in _chunks(path, content))


def _chunks(path: Path, content: bytes) -> Iterator[tuple[int, memoryview]]:
    """Split a part's file into chunks, up to the first that is not whole."""
    view = memoryview(content)
    at = 0
    while at + _HEADER_SIZE <= len(view):
        magic, number, size, _ = _FIELDS.unpack_from(view, at)
        body = view[at + _HEADER_SIZE : at + _HEADER_SIZE + size]
        crc = _checksum(path, view[at : at + _FIELDS.size], body)
        if (
            magic != _MAGIC
            or len(body) < size
            or _CRC.unpack_from(view, at + _FIELDS.size)[0] != crc
        ):
            return
        yield number, body
        at += _HEADER_SIZE + size


# Units: staged records that become visible together, written as one stretch of the log.


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The records of one entry to be."""

    key: QueueKey
    records: Records
    tags: npt.NDArray[np.int32]

    @classmethod
    def of(cls, append: QueueAppend) -> Piece:
        """Make the piece of an append."""
        return cls(append.key, append.records, tag_hashes(append.records))


class UnitPlan:
    """The pieces of a unit, queue by queue; staged bytes are copied only when their turn comes.

    Parts keep the order in which they are named, and so do the records in each.
    """

    def __init__(
        self, runs: Sequence[StagedRun], extra: Sequence[QueueAppend], ops: fileops.FileOps
    ) -> None:
        self._ops = ops
        queues: dict[QueueKey, list[StagedRun]] = {}
        for run in runs:
            queues.setdefault((run.topic, run.queue_id), []).append(run)
        self._groups = [(key, group) for key, parts in queues.items() for group in _grouped(parts)]
        self._extra = [append for append in extra if len(append.records.starts)]

    @property
    def keys(self) -> set[QueueKey]:
        """The queues that get records."""
        return {key for key, _ in self._groups} | {append.key for append in self._extra}

    def __len__(self) -> int:
        return len(self._groups) + len(self._extra)

    def __iter__(self) -> Iterator[Piece]:
        files = _StagedFiles(self._ops)
        try:
            for key, group in self._groups:
                yield _copy(key, group, files)
        finally:
            files.close()
        for append in self._extra:
            yield Piece.of(append)


def _grouped(runs: list[StagedRun]) -> Iterator[list[StagedRun]]:
    """Join small runs, in order, to pieces of the right size."""
    group: list[StagedRun] = []
    size = 0
    for run in runs:
        if group and size + run.size > RUN_BYTES:
            yield group
            group, size = [], 0
        group.append(run)
        size += run.size
    yield group


def _copy(key: QueueKey, group: list[StagedRun], files: _StagedFiles) -> Piece:
    content = bytearray(sum(run.size for run in group))
    view = memoryview(content)
    starts = []
    at = 0
    for run in group:
        files.read(run, view[at : at + run.size])
        starts.append(run.starts + at)
        at += run.size
    records = Records(content, np.concatenate(starts))
    return Piece(key, records, np.concatenate([run.tags for run in group]))


class _StagedFiles:
    """Staged files, each opened once for a unit."""

    def __init__(self, ops: fileops.FileOps) -> None:
        self._ops = ops
        self._fds: dict[Path, int] = {}

    def read(self, run: StagedRun, target: memoryview) -> None:
        path = run.path
        try:
            if path not in self._fds:
                self._fds[path] = self._ops.open(path, os.O_RDONLY)
            content = fileops.read_all(self._ops, self._fds[path], run.size, run.offset)
        except OSError as error:
            raise _lost(f"cannot read staged file {path}: {error.strerror or error}") from error
        if zlib.crc32(content) != run.crc:
            where = f"{run.size} bytes from byte {run.offset} on"
            raise _lost(f"staged file {path} is damaged: {where} are not what was staged")
        target[:] = content

    def close(self) -> None:
        for fd in self._fds.values():
            self._ops.close(fd)
        self._fds = {}


def _lost(what: str) -> StagedPartMissingError:
    return StagedPartMissingError(
        what, hint="plan the batch anew and stage it again; if it comes back, check the disk"
    )
