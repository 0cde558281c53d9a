"""Pulls many queues at once, ahead of who takes what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from logging import Logger

from headrace.client import AsyncClient, AsyncPullConsumer, MessageQueue, PullResult, PullStatus
from headrace.errors import (
    HeadraceError,
    NotFoundError,
    OffsetExpiredError,
    StateError,
    TopicNotFoundError,
)
from headrace.watched import watched_thread

__all__ = ["QueueReader"]

#: How long a broker may hold a pull back while there is nothing to read.
_HELD_BACK = timedelta(seconds=10)
#: From so many messages behind on, pulls are sent ahead.
_BEHIND = 1000
_BLOCK_BYTES = 1 << 20
#: Blocks of one queue that wait to be taken.
_AHEAD = 2
#: Pauses between two tries, in seconds: the first, the longest.
_PAUSE_FIRST, _PAUSE_MOST = 0.1, 5.0
#: A topic is gone while its broker is, and comes back with it; the next pull says what expired.
_PASSING = (TopicNotFoundError, NotFoundError, OffsetExpiredError)


class QueueReader:
    """Reads queues of another cluster, over any time without its brokers.

    A broker's name leads to its address: when the name server tells another one, because a replica
    was made the master, reading goes on there.

    Parameters
    ----------
    connect
        Makes a client, on the reader's own loop.
    offsets
        The queues to read, and where to begin.
    logger
        Hears of failures that may pass.
    committed
        Whether to leave out what jobs have written and not committed.
    skips_lost
        Whether to go on behind messages that the cluster deleted before they were read.
    """

    def __init__(
        self,
        connect: Callable[[], AsyncClient],
        offsets: Mapping[MessageQueue, int],
        logger: Logger,
        *,
        committed: bool = True,
        skips_lost: bool = False,
    ) -> None:
        self._connect = connect
        self._offsets = dict(offsets)
        self._logger = logger
        self._committed = committed
        self._skips_lost = skips_lost
        self._arrived: queue.SimpleQueue[PullResult | BaseException] = queue.SimpleQueue()
        self._room = {one: asyncio.Semaphore(_AHEAD) for one in offsets}
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = watched_thread(self._run, name="queues", on_failure=self._arrived.put)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def take(self, seconds: float) -> PullResult | None:
        """Give the next block of any queue; ``None`` where none comes in time.

        Raises
        ------
        HeadraceError
            What has ended the reading.
        """
        try:
            arrived = self._arrived.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(arrived, BaseException):
            # Whoever asks again hears it again.
            self._arrived.put(arrived)
            raise arrived
        # What waited when the reading ended is taken all the same.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._room[arrived.queue].release)
        return arrived

    def close(self) -> None:
        """End the reading."""
        if self._thread.is_alive():
            # A reading that has failed may end, and its loop with it, at this moment.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._read_all())

    async def _read_all(self) -> None:
        async with self._connect() as client:
            consumer = AsyncPullConsumer(client, committed=self._committed)
            readings = [
                asyncio.create_task(self._read(consumer, one, offset))
                for one, offset in self._offsets.items()
            ]
            ending = asyncio.create_task(self._closing.wait())
            done, _ = await asyncio.wait([*readings, ending], return_when=asyncio.FIRST_COMPLETED)
            for task in (*readings, ending):
                task.cancel()
            await asyncio.gather(*readings, ending, return_exceptions=True)
            for task in done:
                task.result()

    async def _read(self, consumer: AsyncPullConsumer, one: MessageQueue, offset: int) -> None:
        pause = _PAUSE_FIRST
        while True:
            try:
                async for result in self._results(consumer, one, offset):
                    offset = result.next_offset
                    if result.block:
                        await self._room[one].acquire()
                        self._arrived.put(result)
                    pause = _PAUSE_FIRST
            except HeadraceError as error:
                if not error.retriable and not isinstance(error, _PASSING):
                    raise
                self._logger.warning("queue %s cannot be read for now: %s", one, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_MOST)

    async def _results(
        self, consumer: AsyncPullConsumer, one: MessageQueue, offset: int
    ) -> AsyncIterator[PullResult]:
        """Give what one pull finds, and what stands behind it as long as that is much."""
        result = await consumer.pull(one, offset, max_bytes=_BLOCK_BYTES, wait=_HELD_BACK)
        if result.status is PullStatus.OFFSET_MOVED:
            self._check_loss(result, offset)
        yield result
        if result.max_offset - result.next_offset > _BEHIND:
            blocks = consumer.blocks(
                one, result.next_offset, result.max_offset, max_bytes=_BLOCK_BYTES
            )
            async for more in blocks:
                yield more

    def _check_loss(self, result: PullResult, offset: int) -> None:
        """Refuse to pass over messages that nobody has read."""
        what = (
            f"queue {result.queue} of the other cluster holds offsets from {result.min_offset} up"
            f" to {result.max_offset}, and the next one to read is {offset}"
        )
        if self._skips_lost and offset < result.min_offset:
            self._logger.warning("%s; what is missing is lost", what)
            return
        raise StateError(
            what,
            hint="Its messages were deleted before they were read, or its topic was made anew."
            " Stop the connector and reset the queue's offset, or set when.lost=skip to go on with"
            " what is there.",
        )
