"""The log of a cluster of workers: a compaction topic with one queue.

The position of a record is its offset.  Each has its own key, so that the broker's compaction
never lets a record that was void replace one that held: superseded records are deleted by their
keys, when their sum is known to stand in the log whole.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from headrace.connect.log.folding import Applied, fold
from headrace.connect.log.protocol import LogStatistics, MemoryLog, decoded, encoded
from headrace.errors import (
    BrokerStorageError,
    ConnectError,
    HeadraceError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from headrace.leases import boot_time
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.client import AsyncClient, MessageQueue, PullResult
    from headrace.connect.log.records import ClusterView, CompactedRecord, Record


logger = logging.getLogger(__name__)

_AT_ONCE = timedelta(0)
_PULL_MESSAGES = 100_000
#: Deletes that go out in one request.
_TOGETHER = 500
#: Bytes of sums that go out in one request, unless a single one is larger.
_REQUEST = 1024 * 1024


class TopicLog:
    """A log in a topic, for all workers of a cluster.

    The order of the topic is the order of the log: whoever appends reads back to the own record
    before it goes on.

    Parameters
    ----------
    client
        The connection to the cluster; it stays open when the log is closed.
    topic
        Its topic; `open` makes it.
    wait
        How long the broker holds back a pull that finds nothing.

    Examples
    --------
    >>> async def show(client: AsyncClient) -> None:
    ...     log = await TopicLog.open(client, "connect-config")
    ...     async for position, record in log.read():
    ...         print(position, record)
    ...     await log.close()
    """

    def __init__(
        self, client: AsyncClient, topic: str, *, wait: timedelta = timedelta(seconds=15)
    ) -> None:
        from headrace.client import AsyncProducer, AsyncPullConsumer

        self._client = client
        self._topic = topic
        self._wait = wait
        self._producer = AsyncProducer(client)
        self._puller = AsyncPullConsumer(client)
        self._memory = MemoryLog()
        #: Key of each record that has not been deleted, by position.
        self._keys: dict[int, str] = {}
        #: Where the next pull begins.
        self._next = 0
        #: When the last question was asked whose answer reached the end: it may lie around for long.
        self._heard = boot_time()
        self._moved = asyncio.Event()
        self._failure: HeadraceError | None = None
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, client: AsyncClient, topic: str, *, wait: timedelta = timedelta(seconds=15)
    ) -> Self:
        """Make the topic if it is not there, and read it to its end.

        Raises
        ------
        ConnectError
            The topic is not one that can hold a log.
        CorruptLogError
            A record in it is damaged, or has a part that this release does not know.
        """
        log = cls(client, topic, wait=wait)
        queue = await log._made()
        await log._load(queue)
        for name, work in (("reader", log._follow), ("end", log._look_at_end)):
            reader = watched_task(
                work(queue), name=f"connect-log-{name} {topic}", on_failure=log._end
            )
            log._readers.append(reader)
        return log

    async def append(self, record: Record | CompactedRecord) -> int:
        """Append a record, and return its position when it has been read back.

        An error that may pass leaves open whether it stands in the log: send it again with the
        same request, and it counts once.

        Raises
        ------
        MessageTooLargeError
            It has more than 4 MiB.
        """
        body = encoded(record)
        if self._failure is not None:
            raise self._failure
        queue = await self._queue()
        # A second try has another key: the broker keeps the newest message of a key, and that would
        # give the record another place in the order.
        sent = await self._client.retry(lambda: self._sent(queue, body, _key_of(record)))
        await self._read_past(sent)
        return sent

    async def end(self) -> int:
        """Return a position behind all records that have been read."""
        return await self._memory.end()

    def read(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on that have been read."""
        return self._memory.read(start)

    def follow(self, start: int = 0) -> AsyncIterator[tuple[int, Record | CompactedRecord]]:
        """Return all records from a position on, and every new one as it comes."""
        return self._memory.follow(start)

    async def compact(self, view: ClusterView) -> bool:
        """Write the sum of all records, and delete them; return False if others wrote meanwhile.

        Caller: one worker at a time, the coordinator; two would make each other give up.
        """
        if view.position != await self._memory.end() - 1:
            return False
        if view.position < 0:
            return True
        old = sorted(one for one in self._keys if one <= view.position)
        written: list[int] = []
        try:
            async for positions in self._sums(view.kept()):
                written += positions
        except MessageTooLargeError as error:
            logger.warning("the log in topic %s is not compacted: %s", self._topic, error)
            await self._delete(written)
            return False
        if not await self._stands(view, written):
            await self._delete(written)
            return False
        # The oldest go last: whoever reads while this goes on, or after it was broken off, finds a
        # beginning of the log, and then the sums.
        await self._delete(old)
        return True

    async def close(self) -> None:
        """Stop reading."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def heard_at(self) -> float:
        """Return when the question was asked whose answer reached the end, by the boot clock."""
        return self._heard

    @property
    def failure(self) -> HeadraceError | None:
        """Why the log cannot be read any more; None: it can."""
        return self._failure

    def statistics(self) -> LogStatistics:
        """Return how much the log holds."""
        return self._memory.statistics()

    # The topic

    async def _made(self) -> MessageQueue:
        from headrace.client import AsyncAdmin
        from headrace.protocol.routes import COMPACTED, keeps_newest

        admin = AsyncAdmin(self._client)
        if not await admin.topic_exists(self._topic):
            home = sorted(await self._client.brokers())[:1]
            await admin.create_topic(self._topic, 1, attributes=COMPACTED, brokers=home)
        for broker, config in (await admin.topic_config(self._topic)).items():
            if not keeps_newest(config.attributes):
                raise ConnectError(
                    f"topic '{self._topic}' is no compaction topic on broker '{broker}': retention"
                    " would delete the configs in it",
                    hint=f"delete it if nothing is in it (headrace topic delete {self._topic}), and"
                    " the worker makes it anew; else give the workers another group",
                )
        queues = await self._client.queues(self._topic)
        if len(queues) != 1:
            raise ConnectError(
                f"topic '{self._topic}' has {len(queues)} queues, and a log has one order",
                hint="delete it if nothing is in it, or give the workers another group",
            )
        return queues[0]

    async def _queue(self) -> MessageQueue:
        queues = await self._client.queues(self._topic, for_="write")
        if not queues:
            raise TopicNotFoundError(
                f"topic '{self._topic}' has no queue that takes messages",
                hint="check its permissions and that its broker runs",
            )
        return queues[0]

    # Writing

    async def _sent(self, queue: MessageQueue, body: bytes, key: str) -> int:
        from headrace.client import Message

        message = Message(topic=self._topic, body=body, keys=_unique(key))
        return (await self._producer.send(message, queue, once=True)).offset

    async def _sums(self, kept: Sequence[CompactedRecord]) -> AsyncIterator[range]:
        """Append sums, many in one request: the fewer requests, the less others write between."""
        from headrace.client import Message

        queue = await self._queue()
        messages = [
            Message(topic=self._topic, body=encoded(one), keys=_unique(_key_of(one)))
            for one in kept
        ]
        while messages:
            count = _fitting([len(message.body) for message in messages])
            sent = await self._producer.send_batch(messages[:count], queue)
            await self._read_past(sent.offset + count - 1)
            yield range(sent.offset, sent.offset + count)
            messages = messages[count:]

    async def _delete(self, positions: list[int]) -> None:
        """Delete records, the newest first; RocketMQ trips over an empty body, but not in a batch."""
        from headrace.client import Message

        queue = await self._queue()
        keys = [self._keys[one] for one in sorted(positions, reverse=True) if one in self._keys]
        for begin in range(0, len(keys), _TOGETHER):
            some = keys[begin : begin + _TOGETHER]
            messages = [Message(topic=self._topic, body=b"", keys=key) for key in some]
            await self._producer.send_batch(messages, queue)

    async def _stands(self, view: ClusterView, written: list[int]) -> bool:
        """Return whether the sums are whole: nobody wrote anything in between."""
        between = [
            (position, record)
            async for position, record in self._memory.read(view.position + 1)
            if position <= written[-1]
        ]
        if [position for position, _ in between] != written:
            return False
        for position, record in between:
            view, outcome = fold(view, record, position)
            if not isinstance(outcome, Applied):
                return False
        return True

    async def _read_past(self, position: int) -> None:
        while self._next <= position:
            if self._failure is not None:
                raise self._failure
            moved = self._moved
            await moved.wait()

    # Reading

    async def _load(self, queue: MessageQueue) -> None:
        """Read all that is there, leaving out what is deleted further on."""
        self._next = await self._puller.begin_offset(queue)
        end = await self._puller.end_offset(queue)
        while self._next < end:
            await self._advance(queue, _AT_ONCE)

    async def _follow(self, queue: MessageQueue) -> None:
        pause = self._client.settings.retry_backoff_limit.total_seconds()
        while self._failure is None:
            try:
                await self._advance(queue, self._wait)
            except HeadraceError as error:
                logger.warning("the log in topic %s: %s", self._topic, error)
                # A disk of the broker that fails, or has no descriptor left, may be well again.
                if not error.retriable and not isinstance(error, BrokerStorageError):
                    self._fail(error)
                await asyncio.sleep(pause)

    async def _advance(self, queue: MessageQueue, wait: timedelta) -> None:
        from headrace.client import PullStatus

        asked = boot_time()
        found = await self._puller.pull(queue, self._next, max_messages=_PULL_MESSAGES, wait=wait)
        self._take(found)
        # A broker gives a part at a time: what it has not given yet may say something else.
        if found.status is not PullStatus.FOUND or found.next_offset >= found.max_offset:
            self._heard = max(self._heard, asked)

    async def _look_at_end(self, queue: MessageQueue) -> None:
        """Ask for the end now and then: brokers hold pulls back for longer than they are asked to."""
        while self._failure is None:
            await asyncio.sleep(self._wait.total_seconds())
            asked = boot_time()
            with suppress(HeadraceError):  # pulls tell of it
                if await self._puller.end_offset(queue) <= self._next:
                    self._heard = max(self._heard, asked)

    def _take(self, result: PullResult) -> None:
        from headrace.client import PullStatus

        if result.status is PullStatus.OFFSET_MOVED and result.next_offset < self._next:
            raise ConnectError(
                f"topic '{self._topic}' ends at {result.next_offset}, and {self._next} records of"
                " it have been read: it has been made anew, or has lost its end",
                hint="restore the topic, or restart all workers to go on with what it holds",
            )
        if result.status is PullStatus.FOUND:
            self._keep(result)
        self._next = max(self._next, result.next_offset)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _keep(self, result: PullResult) -> None:
        deleted: set[str] = set()
        for message in result.messages():
            key = message.keys or ""
            if message.queue_offset < self._next:
                continue
            if not message.body:
                deleted.add(key)
                continue
            record = decoded(message.body, message.queue_offset)
            self._keys[message.queue_offset] = key
            self._memory.put([record], at=message.queue_offset)
        if deleted:
            gone = {position for position, key in self._keys.items() if key in deleted}
            self._memory.drop(gone)
            for position in gone:
                del self._keys[position]

    def _end(self, error: BaseException) -> None:
        self._fail(ConnectError(f"the reader of topic '{self._topic}' ended: {error!r}"))

    def _fail(self, error: HeadraceError) -> None:
        self._failure = error
        self._memory.fail(error)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        logger.critical("the log in topic %s is read no more: %s", self._topic, error)


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many messages go into one request: as many as fit, and at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > _REQUEST and count:
            return count
    return len(sizes)


def _unique(key: str) -> str:
    return f"{key}-{uuid.uuid4().hex[:12]}"


def _key_of(record: Record | CompactedRecord) -> str:
    """Return the beginning of a record's key, for people who look for it."""
    kind = type(record).__struct_config__.tag
    name = getattr(record, "name", None) or getattr(record, "connector", None) or ""
    return f"{kind}-{quote(name, safe='')}"
