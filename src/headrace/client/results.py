"""The results of pulls."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.durations import format_duration
from headrace.errors import ProtocolError, RequestTimeoutError, TopicNotFoundError
from headrace.protocol.codes import ResponseCode
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.journal_tags import (
    TAG,
    CommitHead,
    CommittedBatches,
    CommittedMessages,
    Judged,
    Tag,
    TagColumns,
    parse_tags,
)
from headrace.protocol.layout import record_starts
from headrace.protocol.messages import StoredMessage as StoredMessage, decode_messages  # noqa: PLC0414
from headrace.protocol.routes import LOGICAL_BROKER, MessageQueue

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient
    from headrace.protocol.frames import Command


class PullStatus(enum.Enum):
    """The possible outcomes of a pull."""

    FOUND = ResponseCode.SUCCESS
    #: The queue has nothing at this offset yet.
    AT_END = ResponseCode.PULL_NOT_FOUND
    #: Messages were passed over, as their tags do not match; go on at ``next_offset``.
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    #: The offset is outside of the queue; ``next_offset`` is the nearest one inside.
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


#: Response codes of pulls that were answered.
PULL_CODES = frozenset(int(status.value) for status in PullStatus)


@dataclass(frozen=True, slots=True)
class PullResult:
    """The answer to a pull: a block of messages as the broker stores them."""

    queue: MessageQueue
    status: PullStatus
    #: Messages end to end in the stored layout; empty unless ``status`` is FOUND.
    block: bytes | bytearray | memoryview
    #: Where the next pull goes on.
    next_offset: int
    #: First offset that the queue still holds.
    min_offset: int
    #: One past its last offset.
    max_offset: int
    #: How far the queue's offsets are ahead of those in the block: only in static topics, whose
    #: queues may have moved from one broker to another.
    offset_delta: int = 0

    def columns(self) -> MessageColumns:
        """Decode the block into Arrow columns, without an object per message.

        A body that claims to be compressed but cannot be unpacked stays as stored: ``packed``.

        Raises
        ------
        ProtocolError
            If the bodies of the block unpack to more than 1 GiB: use ``pieces()``.
        """
        return self._placed(decode_columns(self.block))

    def pieces(self) -> Iterator[MessageColumns]:
        """Decode the block as ``columns()`` does, in as many pieces as its bodies need."""
        return map(self._placed, decode_columns(self.block, unpack=False).unpacked())

    def _placed(self, columns: MessageColumns) -> MessageColumns:
        if not self._is_logical:
            return columns
        return replace(
            columns,
            queue_offset=columns.queue_offset + self.offset_delta,
            queue_id=np.full_like(columns.queue_id, self.queue.queue_id),
        )

    def messages(self) -> list[StoredMessage]:
        """Decode the block into one object per message.

        A body that claims to be compressed but cannot be unpacked stays as stored: its message
        ``is_packed``.
        """
        messages = decode_messages(self.block)
        if not self._is_logical:
            return messages
        return [
            replace(
                message,
                queue_offset=message.queue_offset + self.offset_delta,
                queue_id=self.queue.queue_id,
            )
            for message in messages
        ]

    @property
    def _is_logical(self) -> bool:
        return self.queue.broker == LOGICAL_BROKER


def join_results(results: list[PullResult]) -> PullResult:
    """Make one result of several that follow one another."""
    if len(results) == 1:
        return results[0]
    return replace(results[-1], block=b"".join(result.block for result in results))


def read_pull_answer(queue: MessageQueue, answer: Command) -> PullResult:
    """Read the answer to a pull."""
    status = PullStatus(answer.code)
    return PullResult(
        queue=queue,
        status=status,
        block=answer.payload if status is PullStatus.FOUND else b"",
        next_offset=answer_number(answer, "nextBeginOffset"),
        min_offset=answer_number(answer, "minOffset"),
        max_offset=answer_number(answer, "maxOffset"),
        offset_delta=answer_number(answer, "offsetDelta") if "offsetDelta" in answer.ext else 0,
    )


def answer_number(answer: Command, field: str) -> int:
    """Read a number that an answer must have."""
    try:
        return int(answer.ext[field])
    except (KeyError, ValueError):
        raise ProtocolError(f"an answer lacks the number {field!r}: {answer.ext}") from None


# Reading only what is committed: tagged messages wait for the commit of their batch.

Pull = Callable[["MessageQueue", int, timedelta], Awaitable[PullResult]]

_IN_BLOCK = f"{TAG}\1".encode()
_COMMIT_TOPIC = "{}-commitTopic"
#: How many messages before the first one are looked at where a glance does not suffice: a late
#: repetition of one of them may follow, and no request of a publisher holds more messages.
_LOOK_BACK = 16_384
#: Newest records of a commit topic that are read at first; each says how far its job has come.
_NEWEST = 32
#: How long a broker holds back the request for the next record of a commit topic.
_POLL = timedelta(seconds=1)
_NO_WAIT = timedelta(0)
#: A message that a consumer gives back comes again with its first tag, in any order.
_GIVEN_BACK = ("%RETRY%", "%DLQ%")
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class _MessageRun:
    """Messages that follow one another."""

    offsets: npt.NDArray[np.int64]
    tags: TagColumns

    @classmethod
    def of(cls, result: PullResult) -> Self:
        columns = decode_columns(result.block, unpack=False)
        offsets = columns.queue_offset + result.offset_delta
        return cls(offsets, parse_tags(columns.property(TAG)))

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, begin: int, end: int) -> _MessageRun:
        tags = self.tags
        job = tags.job.slice(begin, end - begin)
        part = TagColumns(job, tags.batch[begin:end], tags.sequence[begin:end])
        return _MessageRun(self.offsets[begin:end], part)

    def tag(self, row: int) -> Tag | None:
        job = self.tags.job[row].as_py()
        numbers = int(self.tags.batch[row]), int(self.tags.sequence[row])
        return None if job is None else Tag(job, *numbers)

    def below(self, offset: int) -> _MessageRun:
        return self.slice(0, int(np.searchsorted(self.offsets, offset)))


@dataclass(slots=True)
class _Commits:
    """The known commits of a job."""

    queue: MessageQueue
    next_offset: int
    batches: CommittedBatches = field(default_factory=CommittedBatches)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _QueueReading:
    """A record of how far a queue was read, and of what was in it."""

    next_offset: int
    messages: CommittedMessages = field(default_factory=CommittedMessages)


class CommittedReading:
    """Leaves out of the answers to pulls what is not committed, and what comes a second time.

    Caller: AsyncPullConsumer.

    Parameters
    ----------
    client
        The connection to the cluster.
    pull
        Pulls at an offset of a queue, and waits up to a time for a message.
    """

    def __init__(self, client: AsyncClient, pull: Pull) -> None:
        self._client = client
        self._pull = pull
        self._commits: dict[str, _Commits] = {}
        self._readings: dict[MessageQueue, _QueueReading] = {}
        #: Whether the cluster was seen to show batches in parts.
        self._shows_parts = False

    async def of(self, result: PullResult, offset: int, wait: timedelta) -> PullResult:
        """Return the committed part of the answer to a pull that began at an offset.

        The call waits up to ``wait`` for a commit.  What is not committed then is left out, and
        the ``next_offset`` of the answer is where it begins.
        """
        given, _ = await self._given(result, offset, None, wait)
        return given

    async def whole(self, result: PullResult, offset: int, end: int) -> PullResult:
        """Return all messages below ``end`` of an answer, once they are committed.

        Raises
        ------
        RequestTimeoutError
            If a batch was not committed within ``ClientSettings.retry_timeout``.
        """
        patience = self._client.settings.retry_timeout
        given, judged = await self._given(result, offset, end, patience)
        if judged is not None and judged.waits_for is not None:
            job, batch = judged.waits_for
            raise RequestTimeoutError(
                f"queue {result.queue} has messages of batch {batch} of job {job!r} at"
                f" {given.next_offset}, which was not committed within"
                f" {format_duration(patience)}",
                hint=f"look at the job: headrace job history {job}",
            )
        return given

    async def _given(
        self, result: PullResult, offset: int, end: int | None, wait: timedelta
    ) -> tuple[PullResult, Judged | None]:
        reading = self._readings.get(result.queue)
        follows = reading is not None and reading.next_offset == offset
        if not await self._has_tags(result):
            if reading is not None and follows:
                reading.next_offset = result.next_offset
            return result, None
        run = _MessageRun.of(result)
        if reading is None or not follows:
            reading = await self._begin(run, result)
            self._readings[result.queue] = reading
        # A cancelled wait leaves messages that were judged and not returned: the next call must
        # begin anew.
        reading.next_offset = _NOWHERE
        wanted = run if end is None else run.below(end)
        judged = await self._judge(reading.messages, wanted, wait)
        count = len(judged.keep)
        reading.next_offset = int(run.offsets[count]) if count < len(run) else result.next_offset
        return _chosen(result, run, judged), judged

    async def _has_tags(self, result: PullResult) -> bool:
        """Return whether a block holds tagged messages that were not committed as one unit."""
        queue = result.queue
        if result.status is not PullStatus.FOUND or queue.topic.startswith(_GIVEN_BACK):
            return False
        block = result.block
        if _IN_BLOCK not in (bytes(block) if isinstance(block, memoryview) else block):
            return False
        if not self._shows_parts:
            self._shows_parts = not await self._commits_units()
        return self._shows_parts

    async def _commits_units(self) -> bool:
        return await self._client.is_headrace()

    async def _begin(self, run: _MessageRun, result: PullResult) -> _QueueReading:
        """Begin to read a queue: find out what stands before that place."""
        reading, queue, first = _QueueReading(_NOWHERE), result.queue, result.min_offset
        known = await self._glance(run, queue, first)
        if known is not None:
            reading.messages.saw(known)
            return reading
        offset = int(run.offsets[0])
        at = max(first, offset - _LOOK_BACK)
        while at < offset:
            before = await self._pull(queue, at, _NO_WAIT)
            if before.status is not PullStatus.FOUND:
                break
            reading.messages.saw(_MessageRun.of(before).below(offset).tags)
            at = before.next_offset
        return reading

    async def _glance(self, run: _MessageRun, queue: MessageQueue, first: int) -> TagColumns | None:
        """Return the tag before the first message; None if others may have written to the queue.

        With sequence s its batch began s messages before, right behind an older batch of the same
        job: then these s messages are the batch up to here, and none of them comes again yet.
        """
        tag = run.tag(0)
        begin = -1 if tag is None else int(run.offsets[0]) - tag.sequence
        if tag is None or begin < first or not run.tags.of(tag.job).all():
            return None
        probe = run
        if tag.sequence or begin > first:
            probe = _MessageRun.of(await self._pull(queue, max(first, begin - 1), _NO_WAIT))
        found = int(np.searchsorted(probe.offsets, begin))
        if found >= len(probe) or probe.tag(found) != Tag(tag.job, tag.batch, 0):
            return None
        older = probe.tag(found - 1) if found else None
        if begin > first and (older is None or older.job != tag.job or older.batch >= tag.batch):
            return None
        if tag.sequence:
            older = Tag(tag.job, tag.batch, tag.sequence - 1)
        return parse_tags(pa.array([] if older is None else [str(older).encode()], pa.binary()))

    async def _judge(
        self, messages: CommittedMessages, run: _MessageRun, wait: timedelta
    ) -> Judged:
        deadline = asyncio.get_running_loop().time() + wait.total_seconds()
        known = {job: commits.batches.last for job, commits in self._commits.items()}
        keep: list[npt.NDArray[np.bool_]] = []
        done = 0
        while True:
            judged = messages.judge(run.slice(done, len(run)).tags, known)
            keep.append(judged.keep)
            done += len(judged.keep)
            if judged.waits_for is None:
                break
            job, batch = judged.waits_for
            known[job] = await self._committed(job, batch, deadline)
            if known[job] < batch:
                break
        return Judged(np.concatenate(keep), judged.waits_for)

    async def _committed(self, job: str, batch: int, deadline: float) -> int:
        """Wait until ``deadline`` for a batch, and return the last committed batch of the job."""
        if job not in self._commits:
            self._commits.setdefault(job, await self._find(job))
        commits = self._commits[job]
        loop = asyncio.get_running_loop()
        while commits.batches.last < batch:
            left = timedelta(seconds=max(0.0, deadline - loop.time()))
            # Readers of other queues wait for the same job.
            async with commits.lock:
                found = commits.batches.last >= batch or await self._read(commits, min(left, _POLL))
            if not found and loop.time() >= deadline:
                break
        return commits.batches.last

    async def _read(self, commits: _Commits, wait: timedelta) -> bool:
        result = await self._pull(commits.queue, commits.next_offset, wait)
        if result.status is PullStatus.FOUND:
            for message in result.messages():
                # A message without a body only has compaction remove older ones.
                if message.body:
                    commits.batches.feed(msgspec.json.decode(message.body, type=CommitHead))
        commits.next_offset = result.next_offset
        return result.status is not PullStatus.AT_END

    async def _find(self, job: str) -> _Commits:
        topic = _COMMIT_TOPIC.format(job)
        try:
            queue = min(await self._client.queues(topic))
        except TopicNotFoundError as error:
            raise TopicNotFoundError(
                f"messages of job {job!r} cannot be told from uncommitted ones: its commit topic"
                f" {topic!r} is gone",
                hint="read without committed (--committed), or let a job read so by"
                " isolation='read_uncommitted', to get all messages as they are",
            ) from error
        result = await self._pull(queue, 0, _NO_WAIT)
        first, end, count = result.min_offset, result.max_offset, _NEWEST
        while True:
            begin = max(first, end - count)
            commits = _Commits(queue, begin)
            while commits.next_offset < end and await self._read(commits, _NO_WAIT):
                pass
            if commits.batches.last or begin == first:
                return commits
            # These only delete older ones, or the job has committed nothing yet.
            count *= 8


def _chosen(result: PullResult, run: _MessageRun, judged: Judged) -> PullResult:
    """Return an answer with only the messages to hand out."""
    count = len(judged.keep)
    if count == len(run) and judged.keep.all():
        return result
    next_offset = result.next_offset
    if judged.waits_for is not None:
        next_offset = int(run.offsets[count])
    bounds = np.append(record_starts(result.block), len(result.block)).tolist()
    view = memoryview(result.block)
    rows = np.flatnonzero(judged.keep).tolist()
    block = b"".join(view[bounds[row] : bounds[row + 1]] for row in rows)
    status = PullStatus.FOUND
    if not rows:
        status = PullStatus.NO_MATCH if judged.waits_for is None else PullStatus.AT_END
    return replace(result, status=status, block=block, next_offset=next_offset)
