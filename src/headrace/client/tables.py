"""Tables: the last value of each key of a compaction topic, read here and written there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.client._table import KeyedRows
from headrace.client.client import AsyncClient, Openable
from headrace.client.producer import AsyncProducer, SendResult
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.results import PullResult, PullStatus
from headrace.errors import ConfigurationError, HeadraceError, RequestTimeoutError
from headrace.keys import EXACT_KEY, KEYS, properties_of_key
from headrace.protocol.messages import Message
from headrace.watched import watched_task

if TYPE_CHECKING:
    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.routes import MessageQueue


logger = logging.getLogger(__name__)

_PULL_MESSAGES = 1_000_000
_PULL_BYTES = 4 * 1024 * 1024
_NO_WAIT = timedelta(0)


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Counts of what a table holds and how far it has read."""

    #: Keys that have a value.
    keys: int
    #: Memory that the table takes.
    bytes: int
    #: Messages read so far.
    messages: int
    #: Messages left out because they have no key.
    without_key: int
    #: Next offset to read of each queue.
    positions: dict[MessageQueue, int]


class AsyncTableReader(Openable):
    """The table that a compaction topic holds: the last value of each key, answered locally.

    It reads the topic from offset 0 and follows it for ever.  An empty body deletes its key, and so
    does RIP-58's marker property.  A key takes 30 to 70 bytes besides its own and its value's, and
    no Python object.

    Parameters
    ----------
    client
        The connection to the cluster.
    topic
        What to read; equal keys must be in one queue, where Headrace's sends by key put them.
    wait
        How long the broker holds back a pull that finds nothing.

    Examples
    --------
    >>> async def show(client: AsyncClient) -> None:
    ...     async with AsyncTableReader(client, "settings") as table:
    ...         await table.caught_up()
    ...         print(table.get("color"), dict(table.items(prefix="size.")))
    """

    def __init__(
        self, client: AsyncClient, topic: str, *, wait: timedelta = timedelta(seconds=15)
    ) -> None:
        self.client = client
        self.topic = topic
        self._wait = wait
        self._puller = AsyncPullConsumer(client)
        self._table = KeyedRows()
        self._positions: dict[MessageQueue, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        #: Refusals that will not mend themselves, by queue, until the broker answers otherwise.
        self._refused: dict[MessageQueue, HeadraceError] = {}
        self._messages = 0

    async def start(self) -> None:
        """Begin to read in the background.

        Raises
        ------
        TopicNotFoundError
            If the topic does not exist.
        """
        if self._tasks:
            return
        for queue in await self.client.queues(self.topic):
            self._positions[queue] = 0
            self._tasks.append(
                watched_task(self._read(queue), name=f"table {queue}", on_failure=self._fail)
            )

    async def close(self) -> None:
        """Stop reading; what is in the table stays readable."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the table holds

    def get(self, key: object, default: bytes | None = None) -> bytes | None:
        """Return the value of a key from memory, as far as the topic was read; on any thread.

        Parameters
        ----------
        key
            Text, or any other key that ``headrace.keys`` knows.
        """
        value = self._table.get(_text_of(key))
        return default if value is None else value

    def items(self, prefix: str = "") -> Iterator[tuple[Any, bytes]]:
        """Iterate over keys and values as they are now; a prefix selects text keys that have it."""
        return self._table.items(prefix.encode())

    def __contains__(self, key: object) -> bool:
        return self._table.get(_text_of(key)) is not None

    def __len__(self) -> int:
        return len(self._table)

    def statistics(self) -> TableStatistics:
        """Return how much the table holds and how far it has read."""
        table = self._table
        return TableStatistics(
            len(table), table.size, self._messages, table.without_key, dict(self._positions)
        )

    # How far it is

    async def caught_up(self, timeout: timedelta | None = None) -> None:
        """Wait until the table has everything that the topic holds now.

        Raises
        ------
        RequestTimeoutError
            If that took longer than ``timeout``.
        HeadraceError
            If a broker refuses to return a queue's messages, for example damaged ones.
        """
        await self.start()
        await self.wait_until(await self._puller.end_offsets(self._positions), timeout)

    async def wait_until(
        self,
        written: SendResult | Mapping[MessageQueue, int],
        timeout: timedelta | None = None,
    ) -> None:
        """Wait until a sent message is in the table, so that you read what you have written.

        Parameters
        ----------
        written
            What the send returned, or offsets before which everything must be read.

        Raises
        ------
        RequestTimeoutError
            If that took longer than ``timeout``.
        HeadraceError
            If a broker refuses to return a queue's messages, for example damaged ones.
        """
        if isinstance(written, SendResult):
            written = {written.queue: written.offset + written.count}
        behind = self._behind(written)
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                while behind:
                    self._news.clear()
                    await self._news.wait()
                    behind = self._behind(written)
        except TimeoutError:
            queue, offset = next(iter(behind.items()))
            raise RequestTimeoutError(
                f"the table of topic {self.topic!r} has read {queue} up to "
                f"{self._positions.get(queue)}, not up to {offset}, within {timeout}",
                hint="is its broker running, and the queue one of the topic's?",
            ) from None

    def _behind(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        if self._failure is not None:
            raise self._failure
        behind = {q: offset for q, offset in offsets.items() if self._positions.get(q, -1) < offset}
        for queue in behind:
            if queue in self._refused:
                raise self._refused[queue]
        return behind

    # Reading

    async def _read(self, queue: MessageQueue) -> None:
        pause = self.client.settings.retry_backoff_limit.total_seconds()
        wait = _NO_WAIT
        while True:
            try:
                result = await self._puller.pull(
                    queue,
                    self._positions[queue],
                    max_messages=_PULL_MESSAGES,
                    max_bytes=_PULL_BYTES,
                    wait=wait,
                )
                self._take(queue, result)
            except HeadraceError as error:
                # Nothing is skipped: neither while a broker is away, nor what cannot be decoded.
                logger.warning("table %r: %s: %s", self.topic, queue, error)
                if not error.retriable:
                    # It is tried again all the same, but nobody should wait for it.
                    self._refused[queue] = error
                    self._news.set()
                await asyncio.sleep(pause)
            else:
                self._refused.pop(queue, None)
                # Behind the last message an answer may wait, but compaction may have taken that
                # last message: the first answer there tells where the queue ends.
                wait = self._wait if result.status is PullStatus.AT_END else _NO_WAIT

    def _take(self, queue: MessageQueue, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_MOVED and self._positions[queue]:
            # The topic was made anew, or has lost what was not read: what it holds now counts.
            logger.warning("table %r: %s is read anew from its first offset", self.topic, queue)
            self._table.reset(queue)
            self._positions[queue] = 0
            return
        if result.status is PullStatus.FOUND:
            for columns in result.pieces():
                self._table.apply(queue, self._without_unreadable(queue, columns))
                self._messages += len(columns)
        self._positions[queue] = result.next_offset
        self._news.set()

    def _without_unreadable(self, queue: MessageQueue, columns: MessageColumns) -> MessageColumns:
        packed = columns.packed
        if not packed.any():
            return columns
        for offset in columns.queue_offset[packed].tolist():
            logger.error(
                "table %r: the value at %s, offset %d, is compressed and cannot be unpacked: its key"
                " stays as it was",
                self.topic, queue, offset,
            )  # fmt: skip
        return columns.take(~packed)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._news.set()


class AsyncTableWriter(Openable):
    """Writes a table: each value goes to the queue of its key.

    Parameters
    ----------
    client
        The connection to the cluster.
    topic
        A topic whose ``cleanup.policy`` is COMPACTION: `headrace topic create --compaction`.

    Examples
    --------
    >>> async def paint(client: AsyncClient) -> None:
    ...     writer = AsyncTableWriter(client, "settings")
    ...     await writer.put("color", b"red")
    ...     await writer.delete("size")
    """

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.topic = topic
        self._producer = AsyncProducer(client)

    async def put(self, key: object, value: bytes) -> SendResult:
        """Set the value of a key.

        Raises
        ------
        ConfigurationError
            If the value is empty, which would delete the key.
        """
        if not value:
            raise ConfigurationError(
                f"an empty value for key {key!r} of topic {self.topic!r} would delete the key",
                hint="call delete, or write values that are never empty",
            )
        return await self._send(key, value)

    async def delete(self, key: object) -> SendResult:
        """Delete a key; a missing key is no error."""
        return await self._send(key, b"")

    async def _send(self, key: object, value: bytes) -> SendResult:
        properties = properties_of_key(key)
        if not properties:
            raise ConfigurationError(f"a value for topic {self.topic!r} needs a key, not None")
        keys = properties.pop(KEYS)
        message = Message(topic=self.topic, body=value, keys=keys, properties=properties)
        if value:
            return await self._producer.send(message)
        # RocketMQ's broker trips over an empty body, but not in a batch.
        (sent,) = await self._producer.send_many([message])
        return sent


def _text_of(key: object) -> bytes:
    properties = properties_of_key(key)
    if EXACT_KEY not in properties and KEYS not in properties:
        raise ConfigurationError("None cannot be a key of a table")
    return properties[KEYS].encode()
