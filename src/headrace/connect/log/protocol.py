"""What a log of a cluster of workers does, and one that lies in memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from headrace.connect.log.records import ClusterView, CompactedRecord, Record
from headrace.errors import CorruptLogError, HeadraceError, MessageTooLargeError
from headrace.leases import boot_time

#: No broker takes a larger message.
LARGEST_RECORD = 4 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record | CompactedRecord] = msgspec.json.Decoder(
    Record | CompactedRecord
)


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """What a log holds."""

    #: Records since the last compaction, and the sums that it left.
    records: int
    #: Position that the next record will have.
    end: int


class Log(Protocol):
    """An ordered list of records that many may read and append to.

    Positions rise, and never mean another record; after a compaction some are gone.
    """

    async def append(self, record: Record | CompactedRecord) -> int:
        """Append a record and return its position; it is durable then.

        Raises
        ------
        MessageTooLargeError
            It has more than 4 MiB.
        """
        ...

    async def end(self) -> int:
        """Return the position that the next record will have, or a higher one."""
        ...

    def read(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on, up to the end as it is when the call is made."""
        ...

    def follow(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on, and every new one as it comes; it never ends.

        Raises
        ------
        HeadraceError
            The log can be read no more: a record in it is not valid, or its topic was made anew.
        """
        ...

    async def compact(self, view: ClusterView) -> bool:
        """Replace all records by their sum; return False, and do nothing, if it is behind."""
        ...

    def heard_at(self) -> float:
        """Return when the end was asked for of what has been read here whole, by the boot clock."""
        ...

    def statistics(self) -> LogStatistics:
        """Return how much the log holds."""
        ...


def encoded(record: Record | CompactedRecord) -> bytes:
    """Return a record as JSON.

    Raises
    ------
    MessageTooLargeError
        It is an ordinary record of more than 4 MiB.

    Examples
    --------
    >>> from headrace.connect.log.records import TopicUsed
    >>> encoded(TopicUsed(name="orders", topic="lines"))
    b'{"kind":"topic-used","name":"orders","topic":"lines"}'
    """
    body = _encoder.encode(record)
    if len(body) > LARGEST_RECORD and not isinstance(record, CompactedRecord):
        name = getattr(record, "name", "")
        about = f" of connector '{name}'" if name else ""
        raise MessageTooLargeError(
            f"the record {type(record).__name__}{about} has {len(body):,} bytes, and the log of"
            f" Connect takes {LARGEST_RECORD:,}",
            hint="make the config shorter, or have fewer tasks with less in each",
        )
    return body


def decoded(body: bytes, position: int) -> Record | CompactedRecord:
    """Read a record again.

    Raises
    ------
    CorruptLogError
        It is damaged, or has a part that this release does not know.
    """
    text = f"the record at position {position} of the log of Connect"
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise CorruptLogError(
            f"{text} is none that this release of Headrace knows: {error}",
            hint="a newer one wrote it: start this worker by that release, as all of its group",
        ) from error
    except msgspec.MsgspecError as error:
        raise CorruptLogError(
            f"{text} is damaged: {error}", hint="restore the log from a copy"
        ) from error


# A log in memory: for tests, and what has been read of a topic.


class MemoryLog:
    """A log that lasts as long as its process.

    Examples
    --------
    >>> import asyncio
    >>> from headrace.connect.log.records import TopicUsed
    >>> async def example():
    ...     log = MemoryLog()
    ...     await log.append(TopicUsed(name="orders", topic="lines"))
    ...     return [(position, record.topic) async for position, record in log.read()]
    >>> asyncio.run(example())
    [(0, 'lines')]
    """

    def __init__(self) -> None:
        self._records: list[tuple[int, Record | CompactedRecord]] = []
        self._end = 0
        #: The sums that the last compaction left have positions from here to ...
        self._kept_from = 0
        #: ... before here.
        self._kept_to = 0
        self._news = asyncio.Event()
        #: Why nothing more will come.
        self._failure: HeadraceError | None = None

    async def append(self, record: Record | CompactedRecord) -> int:
        """Append a record and return its position."""
        encoded(record)  # too large is too large here, too
        return self.put([record])

    async def end(self) -> int:
        """Return the position that the next record will have."""
        return self._end

    async def read(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Yield all records from a position on, up to the present end."""
        for item in self._since(start):
            yield item

    async def follow(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Yield all records from a position on, and every new one as it comes."""
        at = start
        while True:
            news = self._news
            for position, record in self._since(at):
                at = position + 1
                yield position, record
            if self._failure is not None:
                raise self._failure
            if at >= self._end:
                await news.wait()

    async def compact(self, view: ClusterView) -> bool:
        """Replace all records by their sum; return False, and do nothing, if it is behind."""
        if view.position != self._end - 1:
            return False
        if self._end == 0:
            return True
        self.replace(view.kept(), self._end)
        return True

    def heard_at(self) -> float:
        """Return the time now, as everything is always here."""
        return boot_time()

    def statistics(self) -> LogStatistics:
        """Return how much the log holds."""
        return LogStatistics(records=len(self._records), end=self._end)

    def put(self, records: Sequence[Record | CompactedRecord], *, at: int | None = None) -> int:
        """Take records that are durable, and return the position of the first.

        Caller: a log that keeps them elsewhere.
        """
        first = self._end if at is None else at
        self._records += [(first + number, record) for number, record in enumerate(records)]
        self._end = first + len(records)
        self._tell()
        return first

    def fail(self, error: HeadraceError) -> None:
        """Tell those who follow the log that nothing more will come.

        Caller: a log that keeps them elsewhere.
        """
        self._failure = error
        self._tell()

    def replace(self, kept: Sequence[Record | CompactedRecord], end: int) -> None:
        """Take sums in the place of all records before a position.

        Caller: a log that keeps them elsewhere.
        """
        self._kept_from, self._kept_to, self._end = end - len(kept), end, end
        positions = range(self._kept_from, end)
        self._records = list(zip(positions, kept, strict=True))

    def drop(self, positions: Collection[int]) -> None:
        """Forget records that are superseded.

        Caller: a log that keeps them elsewhere.
        """
        self._records = [item for item in self._records if item[0] not in positions]

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _since(self, start: int) -> list[tuple[int, Record | CompactedRecord]]:
        # Whoever is behind a compaction needs all that it left: each sum replaces many records.
        if self._kept_from < start < self._kept_to:
            start = self._kept_from
        return self._records[bisect_left(self._records, start, key=lambda item: item[0]) :]
