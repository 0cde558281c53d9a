"""The log of a worker that stands alone: a file in its data folder."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.connect.log.protocol import LogStatistics, MemoryLog, decoded_list, encoded
from headrace.errors import (
    CorruptLogError,
    HeadraceError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
)
from headrace.private import owners_folder
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.connect.log.records import ClusterView, CompactedRecord, Record


# The file of a log: lines of a checksum, a position and JSON, each on disk before it counts.
#
# ::
#
#     a1b2c3d4 0 {"format":1}
#     0f9e8d7c 0 [{"kind":"connector-put",...},{"kind":"status-set",...}]
#     99887766 2 [{"kind":"target-set",...}]
#
# A line holds what was appended at once, and the position of the first of it.  The first line has
# the position with which the file began.

logger = logging.getLogger(__name__)

_NAME = "connect.log"
_LOCK = "connect.lock"
_TORN = "connect.log.torn"
_FORMAT = b'{"format":1}'
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Line(NamedTuple):
    """What was appended at once."""

    #: Position of its first record.
    position: int
    #: A JSON list of records.
    body: bytes


class JsonLinesFile:
    """The file of a log, locked against every other process.

    Parameters
    ----------
    folder
        Where it lies; made if it is not there.

    Raises
    ------
    StoreLockedError
        Another process has it.
    CorruptLogError
        A line before the last one is damaged, or the file is of another format.
    """

    def __init__(self, folder: Path) -> None:
        owners_folder(folder)
        self._path = folder / _NAME
        self._lock = _locked(folder)
        self._broken: str | None = None
        try:
            if not self._path.exists():
                self._replace(0, [])
            self.begin, self.lines, self._size = self._recovered()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def append(self, position: int, bodies: Sequence[bytes]) -> None:
        """Write records as one line; it is on disk when this returns.

        Raises
        ------
        StoreFullError
            There is no space: nothing was written.
        StoreFailedError
            A sync failed, so nobody knows what is on disk: nothing more until the next start.
        """
        if self._broken is not None:
            raise StoreFailedError(
                f"the log {self._path} is closed: {self._broken}",
                hint="check the disk, then start the worker again",
            )
        line = _line(position, b"[" + b",".join(bodies) + b"]")
        try:
            _write_all(self._fd, line, self._size)
        except OSError as error:
            raise self._undone(error) from error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._broken = f"a sync failed: {error.strerror or error}"
            raise StoreFailedError(
                f"could not put a record of {self._path} on disk: {error.strerror or error}",
                hint="check the disk, then start the worker again",
            ) from error
        self._size += len(line)

    def rewrite(self, position: int, bodies: Sequence[bytes], begin: int) -> None:
        """Replace all lines by one; a crash leaves the old or the new file, never a mixture."""
        lines = [_line(position, b"[" + b",".join(bodies) + b"]")] if bodies else []
        try:
            size = self._replace(begin, lines)
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(
                f"could not compact {self._path}: {reason}; the log goes on as it was",
                hint="check the disk and the space on it",
            ) from error
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        self._size = size

    def close(self) -> None:
        """Let others have it."""
        os.close(self._fd)
        os.close(self._lock)

    def _recovered(self) -> tuple[int, list[Line], int]:
        """Read the whole file, and cut off what a crash left unfinished at its end."""
        content = self._path.read_bytes()
        lines: list[Line] = []
        size = 0
        for at, text in _split(content):
            line = _parsed(text)
            if line is None:
                self._cut(content, at, lines)
                break
            lines.append(line)
            size = at + len(text)
        if not lines or lines[0].body != _FORMAT:
            raise CorruptLogError(
                f"{self._path} does not begin as a log of Connect does",
                hint="was it written by a newer release of Headrace? otherwise restore it",
            )
        return lines[0].position, lines[1:], size

    def _cut(self, content: bytes, at: int, lines: list[Line]) -> None:
        """Cut the file at a line that is not whole, if nothing whole stands behind it."""
        first = True
        for behind, text in _split(content[at:]):
            if not first and _parsed(text) is not None:
                last = lines[-1].position if lines else 0
                raise CorruptLogError(
                    f"{self._path} is damaged at byte {at}, behind position {last}, and whole"
                    f" again at byte {at + behind}: records in between cannot be read",
                    hint="restore the file from a copy, or cut it at that byte and lose the rest",
                )
            first = False
        torn = self._path.with_name(_TORN)
        torn.write_bytes(content[at:])
        logger.warning(
            "cut %d bytes off the end of %s, which a crash had left unfinished; they are in %s",
            len(content) - at,
            self._path,
            torn,
        )
        with self._path.open("r+b") as file:
            file.truncate(at)
            os.fsync(file.fileno())

    def _replace(self, begin: int, lines: Sequence[bytes]) -> int:
        content = b"".join([_line(begin, _FORMAT), *lines])
        fresh = self._path.with_name(_NAME + ".tmp")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, content, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(self._path)
        _sync_folder(self._path.parent)
        return len(content)

    def _undone(self, error: OSError) -> StoreError:
        """Take back a line that was written in part, and say why."""
        reason = error.strerror or str(error)
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as second:
            self._broken = f"a write failed and could not be undone: {second.strerror or second}"
        if error.errno in _DISK_FULL:
            return StoreFullError(
                f"no space to write to {self._path} ({reason})",
                hint="make space on this disk: nothing of this request was kept",
            )
        return StoreError(
            f"could not write to {self._path}: {reason}",
            hint="check the disk: nothing of this request was kept",
        )


def _locked(folder: Path) -> int:
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise StoreLockedError(
            f"the log of Connect in {folder} is open in process {holder}",
            hint="stop that worker, or give this one another data folder",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
    return fd


def _line(position: int, body: bytes) -> bytes:
    text = b"%d %s" % (position, body)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _split(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its newline, and where it begins."""
    at = 0
    while at < len(content):
        end = content.find(b"\n", at) + 1 or len(content)
        yield at, content[at:end]
        at = end


def _parsed(text: bytes) -> Line | None:
    """Read a line; None: it is not whole."""
    checksum, _, rest = text[:-1].partition(b" ")
    position, _, body = rest.partition(b" ")
    if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(rest):
        return None
    return Line(int(position), body) if position.isdigit() else None


def _write_all(fd: int, content: bytes, offset: int) -> None:
    left = memoryview(content)
    while left:
        written = os.pwrite(fd, left, offset)
        left, offset = left[written:], offset + written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


#: Records that wait are written together, up to so many.
_TOGETHER = 256


class _Waiting(NamedTuple):
    record: Record | CompactedRecord
    body: bytes
    position: asyncio.Future[int]


class FileLog:
    """A log in a file, for one process at a time.

    What was appended survives the death of the process and of the machine: it is synced before
    `append` returns.  Records that arrive while the disk is busy share the next sync.

    Parameters
    ----------
    folder
        Where its file lies.

    Raises
    ------
    StoreLockedError
        Another process has it open.
    CorruptLogError
        Its middle is damaged; an unfinished end is cut off.

    Examples
    --------
    >>> import asyncio, tempfile
    >>> from headrace.connect.log.records import TopicUsed
    >>> async def example(folder):
    ...     log = FileLog(folder)
    ...     await log.append(TopicUsed(name="orders", topic="lines"))
    ...     await log.close()
    ...     log = FileLog(folder)
    ...     found = [record.topic async for _, record in log.read()]
    ...     await log.close()
    ...     return found
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(example(Path(folder)))
    ['lines']
    """

    def __init__(self, folder: Path) -> None:
        self._file = JsonLinesFile(folder)
        self._memory = MemoryLog()
        self._pending: list[_Waiting] = []
        #: What is being written just now.
        self._writing: list[_Waiting] = []
        #: Why the log takes nothing any more.
        self._failure: StoreError | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        try:
            self._load()
        except HeadraceError:
            self._file.close()
            raise

    async def append(self, record: Record | CompactedRecord) -> int:
        """Put a record at the end and give its position; it is on disk then.

        Raises
        ------
        MessageTooLargeError
            It has more than 4 MiB.
        StoreError
            The disk is full or broken, or the log is closed.
        """
        if self._closed:
            raise StoreError("the log of Connect is closed", hint="start the worker again")
        if self._failure is not None:
            raise self._failure
        position: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append(_Waiting(record, encoded(record), position))
        if self._flusher is None or self._flusher.done():
            self._flusher = watched_task(
                self._flush(), name="connect-log-writer", on_failure=self._fail
            )
        return await position

    async def end(self) -> int:
        """Return the position that the next record will have."""
        return await self._memory.end()

    def read(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on, up to the present end."""
        return self._memory.read(start)

    def follow(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on, and every new one as it comes."""
        return self._memory.follow(start)

    async def compact(self, view: ClusterView) -> bool:
        """Replace all records by their sum; False, and nothing, if there are newer ones."""
        return await asyncio.shield(asyncio.create_task(self._compact(view)))

    async def close(self) -> None:
        """Write what waits, and let others have the file."""
        if self._closed:
            return
        self._closed = True
        if self._flusher is not None:
            await asyncio.gather(self._flusher, return_exceptions=True)
        async with self._turn:
            self._file.close()

    def silent_for(self) -> float:
        """Return 0: what it holds is in memory, too."""
        return 0.0

    def statistics(self) -> LogStatistics:
        """Tell how much it holds."""
        held = self._memory.statistics()
        return LogStatistics(records=held.records, end=held.end, size=self._file.size)

    def _load(self) -> None:
        begin = self._file.begin
        self._memory.replace([], begin)
        end = begin
        for line in self._file.lines:
            records = decoded_list(line.body, line.position)
            if line.position < begin and line.position + len(records) == begin:
                # What a compaction left stands before the position with which the file begins.
                self._memory.replace(records, begin)
                continue
            if line.position != end:
                raise CorruptLogError(
                    f"a log of Connect jumps from position {end} to {line.position}",
                    hint="restore the file from a copy",
                )
            self._memory.put(records)
            end += len(records)
        self._file.lines = []

    def _fail(self, error: BaseException) -> None:
        """Take nothing more: how much of the file holds is known when it is read again."""
        self._failure = StoreError(
            f"the log of Connect takes nothing: its writer has ended by {error!r}",
            hint="start the worker again: it reads what the file holds",
        )
        for one in (*self._writing, *self._pending):
            if not one.position.done():
                one.position.set_exception(self._failure)
        self._writing = self._pending = []

    async def _flush(self) -> None:
        while self._pending:
            async with self._turn:
                batch, self._pending = self._pending[:_TOGETHER], self._pending[_TOGETHER:]
                self._writing = batch
                await self._write(batch)

    async def _write(self, batch: list[_Waiting]) -> None:
        first = await self._memory.end()
        try:
            await asyncio.to_thread(self._file.append, first, [one.body for one in batch])
        except StoreError as error:
            for one in batch:
                if not one.position.done():
                    one.position.set_exception(error)
            return
        self._memory.put([one.record for one in batch])
        for number, one in enumerate(batch):
            if not one.position.done():
                one.position.set_result(first + number)

    async def _compact(self, view: ClusterView) -> bool:
        async with self._turn:
            end = await self._memory.end()
            if view.position != end - 1:
                return False
            if end == 0:
                return True
            kept = view.kept()
            bodies = await asyncio.to_thread(lambda: [encoded(one) for one in kept])
            await asyncio.to_thread(self._file.rewrite, end - len(kept), bodies, end)
            self._memory.replace(kept, end)
            return True
