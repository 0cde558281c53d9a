"""The index of keys: files for the full segments, a little memory for the newest."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NotFoundError, ProtocolError
from headrace.protocol.columns import MessageColumns, decode_columns, property_column
from headrace.protocol.layout import locate, record_starts, slices, store_time_of
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import KEYS, UNIQ_KEY
from headrace.store.entries import EntryKind, QueueKey, parse_header
from headrace.store.fileops import Buffer, FileOps, read_all, replace_file
from headrace.store.log import CommitLog, GoneError, Segment

if TYPE_CHECKING:
    from headrace.store.catalog import QueueCatalog
    from headrace.store.reading import Reader


# Hashes of many words at once, 64 bits each: what the index of keys is sorted by.
#
# The same word has the same hash on every machine and in every release, as the hashes are on disk.
# Two words may share a hash, so whoever finds a record by it looks at the record's own words.

UInt64s = npt.NDArray[np.uint64]

#: Odd, so that it has an inverse modulo 2**64.
_BASE = 0x9E37_79B9_7F4A_7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_MIX = (np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(0xC4CE_B9FE_1A85_EC53))
_SHIFT = np.uint64(33)
#: Bytes of words that are hashed in one go, at least.
_HASHES_AT_ONCE = 1 << 18


def topic_hash(topic: bytes) -> np.uint64:
    """Hash a topic's name, to be given to :func:`word_hashes`."""
    return np.uint64(word_hashes(pa.array([topic], pa.binary()), np.zeros(1, np.uint64))[0])


def word_hashes(words: pa.BinaryArray, topics: UInt64s) -> UInt64s:
    """Hash words, each together with the hash of its topic.

    >>> pair = pa.array([b"k1", b"k2"], pa.binary())
    >>> a, b = word_hashes(pair, np.full(2, topic_hash(b"lines")))
    >>> bool(a == b), bool(a == word_hashes(pair[:1], np.array([topic_hash(b"words")]))[0])
    (False, False)
    """
    _, offset_buffer, data = words.buffers()
    if not len(words) or data is None:
        return _mixed(topics.copy())
    offsets = np.frombuffer(offset_buffer, np.int32)[words.offset :][: len(words) + 1]
    offsets = offsets.astype(np.int64)
    text = np.frombuffer(data, np.uint8)
    found = np.empty(len(words), np.uint64)
    first = 0
    while first < len(words):
        # At least one word, however long it is.
        last = max(int(np.searchsorted(offsets, offsets[first] + _HASHES_AT_ONCE)) - 1, first + 1)
        last = min(last, len(words))
        bounds = offsets[first : last + 1]
        found[first:last] = _polynomials(text[bounds[0] : bounds[-1]], bounds - bounds[0])
        first = last
    lengths = (offsets[1:] - offsets[:-1]).astype(np.uint64)
    return _mixed(_mixed(found + lengths) ^ topics)


def _polynomials(text: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> UInt64s:
    """Hash slices that follow each other, by differences of sums over all that comes before."""
    powers, inverses = _tables(1 << max(len(text).bit_length(), 10))
    sums = np.zeros(len(text) + 1, np.uint64)
    # One more than each byte: leading zeros count, too.
    np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers[: len(text)], out=sums[1:])
    found: UInt64s = (sums[bounds[1:]] - sums[bounds[:-1]]) * inverses[bounds[:-1]]
    return found


@lru_cache(maxsize=8)
def _tables(size: int) -> tuple[UInt64s, UInt64s]:
    """Powers of the base and of its inverse, modulo 2**64."""
    powers = []
    for base in (_BASE, _INVERSE):
        table = np.full(size + 1, np.uint64(base), np.uint64)
        table[0] = 1
        powers.append(np.cumprod(table, dtype=np.uint64))
    return powers[0], powers[1]


def _mixed(numbers: UInt64s) -> UInt64s:
    """Mix numbers so that every bit depends on every bit."""
    for factor in _MIX:
        numbers = (numbers ^ (numbers >> _SHIFT)) * factor
    return numbers ^ (numbers >> _SHIFT)


ENTRY = np.dtype([("hash", "<u8"), ("position", "<i8")])
"""A word of a record: its hash, and where the record lies in the log."""

Entries = npt.NDArray[np.void]

#: Records of so many bytes are looked at together.
_AT_ONCE = 8 * 1024 * 1024
_BLANK = b" "


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """The keys of one stretch of the log."""

    #: Sorted by hash.
    entries: Entries
    #: One past the stretch.
    end: int


def collect(content: memoryview, base: int, start: int) -> Iterator[Collected]:
    """Yield the keys of the records in whole entries of the log, stretch by stretch.

    Parameters
    ----------
    content
        Bytes of one segment, up to where readers see it.
    base
        Position of its first byte.
    start
        Position to begin at.
    """
    position, end = start, base + len(content)
    while position < end:
        pieces: list[Buffer] = []
        size = 0
        first = position
        while position < end and size < _AT_ONCE:
            entry = parse_header(content, position - base, position)
            # Damage: recovery and repair deal with it, nothing behind it is found.
            if entry is None or entry.end > end:
                end = position
                break
            if entry.kind is EntryKind.DATA:
                at = entry.payload_position - base
                pieces.append(content[at : at + entry.payload_size])
                size += entry.payload_size
            position = entry.end
        if position > first:
            yield Collected(sorted_entries(_entries(pieces)), position)


def sorted_entries(entries: Entries) -> Entries:
    """Sort by hash; records of one hash are in any order."""
    found: Entries = entries[np.argsort(np.ascontiguousarray(entries["hash"]))]
    return found


def _entries(pieces: list[Buffer]) -> Entries:
    if not pieces:
        return np.empty(0, ENTRY)
    block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    try:
        layout = locate(block, record_starts(block))
    except ProtocolError:
        # One entry holds no records: the others' keys are found all the same.
        return np.empty(0, ENTRY) if len(pieces) == 1 else _one_by_one(pieces)
    positions = layout.head["position"].astype(np.int64)
    topics = _topic_hashes(slices(block, layout.topic_starts, layout.topic_ends))
    properties = slices(block, layout.property_starts, layout.property_ends)
    parts = [
        _of_words(*_words(property_column(properties, name)), topics, positions)
        for name in (UNIQ_KEY, KEYS)
    ]
    return np.concatenate(parts)


def _one_by_one(pieces: list[Buffer]) -> Entries:
    return np.concatenate([_entries([piece]) for piece in pieces])


def _topic_hashes(topics: pa.BinaryArray) -> UInt64s:
    coded = pc.dictionary_encode(topics)
    hashes = np.array([topic_hash(name.as_py()) for name in coded.dictionary], np.uint64)
    found: UInt64s = hashes[coded.indices.to_numpy(zero_copy_only=False)]
    return found


def _words(values: pa.BinaryArray) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]]:
    """Split values at blanks, and return the row of each word, too."""
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    present = values.drop_null()
    if not len(present) or not pc.any(pc.match_substring(present, _BLANK)).as_py():
        return present, rows
    lists = pc.split_pattern(present, _BLANK)
    words = lists.flatten()
    owners = pc.list_parent_indices(lists).to_numpy()
    kept = np.flatnonzero(pc.binary_length(words).to_numpy())
    return words.take(pa.array(kept)), rows[owners[kept]]


def _of_words(
    words: pa.BinaryArray,
    rows: npt.NDArray[np.int64],
    topics: UInt64s,
    positions: npt.NDArray[np.int64],
) -> Entries:
    entries = np.empty(len(rows), ENTRY)
    if len(rows):
        entries["hash"] = word_hashes(words, topics[rows])
        entries["position"] = positions[rows]
    return entries


# Keys of compacted topics whose records the commit log holds no longer.
#
# Their compaction logs are read: they hold one record a key, however many there have been.

_COUNT = 20_000
_BYTES = 8 * 1024 * 1024


def find_compacted(
    reader: Reader, queues: list[QueueKey], query: KeyQuery, log_begin: int
) -> list[bytes]:
    """Return the records that a query asks for and that lie before the log, the newest first."""
    found: list[tuple[int, int, bytes]] = []
    for queue in queues:
        offset = max(reader.bounds(queue).min_offset, 0)
        if query.begin > 0:
            offset = max(offset, reader.offset_at(queue, query.begin, upper=False))
        while True:
            result = reader.read(queue, offset, _COUNT, _BYTES, None)
            if not result.count:
                break
            block = b"".join(result.slices)
            columns = decode_columns(block, unpack=False)
            rows = _rows(columns, query, log_begin)
            found += _records(block, columns, rows)
            if int(columns.position[-1]) >= log_begin:
                break
            offset = result.next_offset
    return [record for _, _, record in sorted(found, reverse=True)[: query.limit]]


def _rows(columns: MessageColumns, query: KeyQuery, log_begin: int) -> npt.NDArray[np.int64]:
    held = _holds(columns.property(UNIQ_KEY), query.word)
    if not query.unique:
        held |= _holds(columns.property(KEYS), query.word)
    held &= (columns.stored >= query.begin) & (columns.stored <= query.end)
    rows: npt.NDArray[np.int64] = np.flatnonzero(held & (columns.position < log_begin))
    return rows[-query.limit :]


def _records(
    block: bytes, columns: MessageColumns, rows: npt.NDArray[np.int64]
) -> list[tuple[int, int, bytes]]:
    if not len(rows):
        return []
    bounds = np.append(record_starts(block), len(block))
    return [
        (int(columns.stored[row]), int(columns.position[row]), block[bounds[row] : bounds[row + 1]])
        for row in rows.tolist()
    ]


def _holds(values: pa.BinaryArray, word: str) -> npt.NDArray[np.bool_]:
    """Return which values, of words with blanks between, hold a word."""
    blank = pa.scalar(b" ")
    padded = pc.binary_join_element_wise(blank, values, blank, pa.scalar(b""))
    held = pc.match_substring(padded, f" {word} ")
    found: npt.NDArray[np.bool_] = pc.fill_null(held, pa.scalar(value=False)).to_numpy(
        zero_copy_only=False
    )
    return found


# What to look for among the keys of messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQuery:
    """Which messages are wanted."""

    topic: str
    #: A word of the messages' keys, or their unique id.
    word: str
    #: Whether only a unique id counts.
    unique: bool = False
    #: Stored at this time or later, ms since 1970.
    begin: int = 0
    #: Stored at this time or before.
    end: int = 1 << 62
    #: At most so many, the newest.
    limit: int = 32


# The file of the keys of one full segment: sorted entries in blocks, each with a checksum.
#
# It is derived from the segment.  A file that is missing, torn, damaged or of other bytes than the
# segment's is made anew.

_MAGIC = b"HRKX"
_VERSION = 1
_BLOCK = 2048
#: First hash and checksum of each block.
_DIRECTORY = np.dtype([("first", "<u8"), ("crc", "<u4")])
#: Magic, version, reserved, base and end of the segment, its fingerprint, entries, directory's CRC.
_TAIL = struct.Struct("<4sHHqqIQI")
_CRC = struct.Struct("<I")
_TAIL_SIZE = _TAIL.size + _CRC.size


class DamagedSidecarError(Exception):
    """The file does not hold what was written; it is made anew."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The bytes that a file is about."""

    base: int
    end: int
    #: Checksum of the segment's last bytes: after a cut others may stand at the same place.
    fingerprint: int


def write_sidecar(path: Path, subject: Subject, entries: Entries, ops: FileOps) -> None:
    """Write the file in one step; entries must be sorted."""
    pieces: list[bytes] = []
    directory = np.empty(-(-len(entries) // _BLOCK), _DIRECTORY)
    for number in range(len(directory)):
        block = entries[number * _BLOCK : (number + 1) * _BLOCK]
        content = block.tobytes()
        directory[number] = (block["hash"][0], zlib.crc32(content))
        pieces.append(content)
    listed = directory.tobytes()
    tail = _TAIL.pack(
        _MAGIC,
        _VERSION,
        0,
        subject.base,
        subject.end,
        subject.fingerprint,
        len(entries),
        zlib.crc32(listed),
    )
    pieces += [listed, tail, _CRC.pack(zlib.crc32(tail))]
    replace_file(ops, path, b"".join(pieces))


class Sidecar:
    """An open file of keys; only its directory is in memory.

    Raises
    ------
    DamagedSidecarError
        It is not whole, or of other bytes than the segment's.
    OSError
        It cannot be read.
    """

    def __init__(self, path: Path, subject: Subject, ops: FileOps) -> None:
        self._path = path
        self._ops = ops
        fd = self._open()
        try:
            self._count, self._directory = self._load(fd, path.stat(), subject)
        finally:
            ops.close(fd)

    def _open(self) -> int:
        return self._ops.open(self._path, os.O_RDONLY)

    def _load(
        self, fd: int, status: os.stat_result, subject: Subject
    ) -> tuple[int, npt.NDArray[np.void]]:
        tail_at = status.st_size - _TAIL_SIZE
        tail = read_all(self._ops, fd, _TAIL_SIZE, tail_at) if tail_at >= 0 else bytearray()
        if len(tail) < _TAIL_SIZE or zlib.crc32(tail[: _TAIL.size]) != _crc_at(tail, _TAIL.size):
            raise DamagedSidecarError(f"{self._path} has no intact end")
        magic, version, _, base, end, fingerprint, count, crc = _TAIL.unpack_from(tail)
        if (magic, version) != (_MAGIC, _VERSION) or Subject(base, end, fingerprint) != subject:
            raise DamagedSidecarError(f"{self._path} is not about its segment")
        size = -(-count // _BLOCK) * _DIRECTORY.itemsize
        listed = read_all(self._ops, fd, size, tail_at - size)
        if count * ENTRY.itemsize + size != tail_at or zlib.crc32(listed) != crc:
            raise DamagedSidecarError(f"{self._path} has a damaged directory")
        return int(count), np.frombuffer(bytes(listed), _DIRECTORY)

    def __len__(self) -> int:
        return self._count

    def find(self, hash_: np.uint64) -> npt.NDArray[np.int64]:
        """Return the positions of records with a word of this hash, in any order.

        Raises
        ------
        DamagedSidecarError
            A block that is needed does not hold what was written.
        """
        firsts = self._directory["first"]
        # An equal first hash may also end the block before.
        number = max(int(np.searchsorted(firsts, hash_)) - 1, 0)
        last = int(np.searchsorted(firsts, hash_, side="right"))
        if number >= last:
            return np.empty(0, np.int64)
        fd = self._open()
        try:
            blocks = [self._block(fd, each) for each in range(number, last)]
        finally:
            self._ops.close(fd)
        entries = np.concatenate(blocks)
        low, high = (
            np.searchsorted(entries["hash"], hash_, side=side) for side in ("left", "right")
        )
        found: npt.NDArray[np.int64] = entries["position"][low:high].astype(np.int64)
        return found

    def _block(self, fd: int, number: int) -> Entries:
        first = number * _BLOCK
        size = min(_BLOCK, self._count - first) * ENTRY.itemsize
        content = read_all(self._ops, fd, size, first * ENTRY.itemsize)
        if len(content) < size or zlib.crc32(content) != int(self._directory["crc"][number]):
            raise DamagedSidecarError(f"{self._path} is damaged in block {number}")
        return np.frombuffer(bytes(content), ENTRY)


def _crc_at(content: bytearray, at: int) -> int:
    return int(_CRC.unpack_from(content, at)[0])


logger = logging.getLogger(__name__)

_SUFFIX = ".keys"
#: Bytes at the end of a stretch whose checksum tells it from others at the same place.
_FINGERPRINT = 4096
#: Share of the time that the background may work.
_DUTY = 0.2

_Positions = npt.NDArray[np.int64]


class KeyIndex:
    """Finds messages by words of their keys.

    What a query costs depends on how many messages it finds and, a little, on how many segments
    there are, not on how many messages they hold.

    Parameters
    ----------
    folder
        Where the files are.
    log, catalog
        What is searched.
    reader
        Reads records.
    ops
        File operations.
    """

    def __init__(
        self,
        folder: Path,
        log: CommitLog,
        catalog: QueueCatalog,
        reader: Reader,
        ops: FileOps,
    ) -> None:
        self._folder = folder
        self._log = log
        self._catalog = catalog
        self._reader = reader
        self._ops = ops
        self._lock = threading.Lock()
        self._files: dict[int, tuple[Subject, Sidecar]] = {}
        self._tail = _Tail()
        self._closing = threading.Event()
        ops.make_directory(folder)

    def find(self, query: KeyQuery) -> list[bytes]:
        """Return the newest records that a query asks for, the newest first."""
        topic = np.full(1, topic_hash(query.topic.encode()))
        wanted = np.uint64(word_hashes(pa.array([query.word.encode()], pa.binary()), topic)[0])
        found: list[bytes] = []
        for positions in self._newest_first(wanted):
            for position in self._within(np.unique(positions), query)[::-1].tolist():
                record = self._record(position)
                if record is not None and self._is_wanted(record, query):
                    found.append(record)
                    if len(found) >= query.limit:
                        return found
        if query.topic in self._catalog.compacted:
            queues = [key for key in self._catalog.queues() if key[0] == query.topic]
            found += find_compacted(self._reader, queues, query, self._log.begin)
        return found[: query.limit]

    def _newest_first(self, wanted: np.uint64) -> Iterator[_Positions]:
        """Yield positions of records with a word of this hash, segment by segment."""
        *full, last = self._log.segments
        with self._lock:
            self._tail.extend(last, min(last.end, self._catalog.position))
            newest = self._tail.find(wanted)
        yield newest
        for segment in reversed(full):
            with contextlib.suppress(GoneError):
                yield self._find_in(segment, wanted)

    def _find_in(self, segment: Segment, wanted: np.uint64) -> _Positions:
        with self._lock:
            file = self._file(segment)
            try:
                return file.find(wanted)
            except DamagedSidecarError as error:
                logger.warning("%s: it is made anew", error)
                return self._make(segment).find(wanted)

    def _file(self, segment: Segment) -> Sidecar:
        """Open the file of a full segment, made now if need be. Caller: holds the lock."""
        subject = _subject(segment)
        known = self._files.get(segment.base)
        if known is not None and known[0] == subject:
            return known[1]
        try:
            file = Sidecar(self._path(segment), subject, self._ops)
        except FileNotFoundError:
            return self._make(segment)
        except DamagedSidecarError as error:
            logger.warning("%s: it is made anew", error)
            return self._make(segment)
        self._files[segment.base] = (subject, file)
        return file

    def _make(self, segment: Segment) -> Sidecar:
        subject, path = _subject(segment), self._path(segment)
        content = segment.view(segment.base, segment.end)
        parts = [part.entries for part in collect(content, segment.base, segment.base)]
        entries = sorted_entries(np.concatenate(parts)) if parts else np.empty(0, ENTRY)
        write_sidecar(path, subject, entries, self._ops)
        file = Sidecar(path, subject, self._ops)
        self._files[segment.base] = (subject, file)
        return file

    def _path(self, segment: Segment) -> Path:
        return self._folder / f"{segment.base:020d}{_SUFFIX}"

    def keep_up(self) -> None:
        """Make what is missing, remove what is left over. Caller: a thread of the background."""
        self._clear()
        for segment in self._log.segments[:-1]:
            if segment.base in self._files:
                continue
            began = time.perf_counter()
            with self._lock, contextlib.suppress(GoneError):
                self._file(segment)
            # Others need the processor more.
            if self._closing.wait((time.perf_counter() - began) * (1 / _DUTY - 1)):
                return

    def close(self) -> None:
        """End the work of the background soon."""
        self._closing.set()

    def _clear(self) -> None:
        """Remove files of segments that are gone."""
        kept = {self._path(segment).name for segment in self._log.segments[:-1]}
        for path in self._folder.glob(f"*{_SUFFIX}*"):
            if path.name not in kept:
                with contextlib.suppress(FileNotFoundError):
                    self._ops.unlink(path)
                if path.stem.isdigit():
                    self._files.pop(int(path.stem), None)

    def _within(self, positions: _Positions, query: KeyQuery) -> _Positions:
        """Leave out what was stored outside the time asked for: store times never fall."""
        low = self._first_from(positions, query.begin)
        high = self._first_from(positions, query.end + 1)
        return positions[low:high]

    def _first_from(self, positions: _Positions, timestamp: int) -> int:
        low, high = 0, len(positions)
        while low < high:
            middle = (low + high) // 2
            record = self._record(int(positions[middle]))
            # A record that is gone is older than all that are not.
            if record is None or store_time_of(record) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def _record(self, position: int) -> bytes | None:
        with contextlib.suppress(NotFoundError):
            return self._reader.read_at(position)
        return None

    def _is_wanted(self, record: bytes, query: KeyQuery) -> bool:
        (message,) = decode_messages(record, unpack=False)
        if message.topic != query.topic or not query.begin <= message.stored <= query.end:
            return False
        own_id = message.properties.get(UNIQ_KEY) == query.word
        words = () if query.unique else message.properties.get(KEYS, "").split(" ")
        return (own_id or query.word in words) and self._is_visible(message)

    def _is_visible(self, message: StoredMessage) -> bool:
        """Return whether a message is of its topic's present life, and not beyond what is kept."""
        view = self._catalog.view((message.topic, message.queue_id))
        return view.birth <= message.position and message.queue_offset < view.max_offset


class _Tail:
    """The keys of the newest segment, as far as it was looked at, in memory.

    It takes 16 bytes for each word, so at most about a sixth of a segment's size.
    """

    def __init__(self) -> None:
        self._base = -1
        self._end = 0
        self._fingerprint = 0
        self._runs: list[Collected] = []

    def extend(self, segment: Segment, end: int) -> None:
        """Take in what was appended since."""
        if not self._is_same(segment, end):
            self._base, self._end, self._runs = segment.base, segment.base, []
        content = segment.view(segment.base, end)
        for run in collect(content, segment.base, self._end):
            self._end = run.end
            self._add(run)
        self._fingerprint = _fingerprint(segment, self._end)

    def _is_same(self, segment: Segment, end: int) -> bool:
        if segment.base != self._base or end < self._end:
            return False
        return _fingerprint(segment, self._end) == self._fingerprint

    def _add(self, run: Collected) -> None:
        """Keep runs few: each is joined with the one before unless that is much larger."""
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2].entries) < 2 * len(self._runs[-1].entries):
            newer, older = self._runs.pop(), self._runs.pop()
            joined = sorted_entries(np.concatenate((older.entries, newer.entries)))
            self._runs.append(Collected(joined, newer.end))

    def find(self, wanted: np.uint64) -> _Positions:
        """Return the positions of records with a word of this hash, in any order."""
        return np.concatenate([_of_hash(run.entries, wanted) for run in self._runs] or [_NONE])


_NONE: _Positions = np.empty(0, np.int64)


def _of_hash(entries: Entries, wanted: np.uint64) -> _Positions:
    low = int(np.searchsorted(entries["hash"], wanted))
    high = int(np.searchsorted(entries["hash"], wanted, side="right"))
    found: _Positions = entries["position"][low:high].astype(np.int64)
    return found


def _subject(segment: Segment) -> Subject:
    return Subject(segment.base, segment.end, _fingerprint(segment, segment.end))


def _fingerprint(segment: Segment, end: int) -> int:
    return zlib.crc32(segment.view(max(segment.base, end - _FINGERPRINT), end))
