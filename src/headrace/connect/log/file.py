"""The log of a worker that stands alone: a file in its data folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.connect.log.lines import LogFile
from headrace.connect.log.memory import MemoryLog
from headrace.connect.log.protocol import LogStatistics, decoded_list, encoded
from headrace.errors import CorruptLogError, HeadraceError, StoreError
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.connect.log.entries import Kept
    from headrace.connect.log.records import Record
    from headrace.connect.log.view import ClusterView

__all__ = ["FileLog"]

#: Records that wait are written together, up to so many.
_TOGETHER = 256


class _Waiting(NamedTuple):
    record: Record | Kept
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
        self._file = LogFile(folder)
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

    async def append(self, record: Record | Kept) -> int:
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
        """Give the position that the next record will have."""
        return await self._memory.end()

    def read(self, start: int = 0) -> AsyncIterator[tuple[int, Record | Kept]]:
        """Give all records from a position on, up to the present end."""
        return self._memory.read(start)

    def follow(self, start: int = 0) -> AsyncIterator[tuple[int, Record | Kept]]:
        """Give all records from a position on, and every new one as it comes."""
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
        """Give 0: what it holds is in memory, too."""
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
