"""Processing of what was read: on many workers at once, or in order queue by queue."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from headrace.client import deliveries
from headrace.client.producer import AsyncProducer
from headrace.durations import format_duration
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import retry_topic
from headrace.protocol.messages import Message, StoredMessage
from headrace.protocol.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from headrace.protocol.routes import LOGICAL_BROKER, MessageQueue
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client._listening import Heard
    from headrace.client.client import AsyncClient


# What one queue's reader has received and not processed yet; no I/O.


class ProcessQueue:
    """Holds the messages of one queue from their arrival until they are processed.

    They may be done in any order; ``committable`` never passes one that is not done.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> from headrace.protocol.messages import StoredMessage
    >>> queue = ProcessQueue(MessageQueue("lines", "broker-a", 0), 7)
    >>> queue.add([StoredMessage(topic="lines", queue_offset=n) for n in (7, 8, 9)], 10)
    >>> queue.done(8)
    >>> queue.committable
    7
    >>> queue.done(7)
    >>> queue.committable
    9
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        #: Messages that nobody works on yet, in order.
        self.waiting: deque[StoredMessage] = deque()
        #: Bytes of all that is not done.
        self.bytes = 0
        #: Another member has the queue now, or it was reset: what is left no longer counts.
        self.dropped = False
        #: Where reading goes on.
        self.next_offset = offset
        #: By offset, in order.
        self._unprocessed: dict[int, StoredMessage] = {}

    def __len__(self) -> int:
        return len(self._unprocessed)

    @property
    def committable(self) -> int:
        """Offset behind the last message before which all are done."""
        return next(iter(self._unprocessed), self.next_offset)

    @property
    def span(self) -> int:
        """Return how far the queue was read beyond ``committable``."""
        return self.next_offset - self.committable

    def add(self, messages: Sequence[StoredMessage], next_offset: int) -> None:
        """Take messages that follow those taken before; the queue goes on at ``next_offset``."""
        for message in messages:
            self._unprocessed[message.queue_offset] = message
            self.bytes += message.size
        self.waiting.extend(messages)
        self.next_offset = next_offset

    def done(self, offset: int) -> None:
        """Note that the message at an offset is processed, here or by somebody else."""
        message = self._unprocessed.pop(offset, None)
        if message is not None:
            self.bytes -= message.size

    def drop(self) -> None:
        """Forget all messages."""
        self.dropped = True
        self.waiting.clear()
        self._unprocessed.clear()
        self.bytes = 0


# Giving a message back to the broker: for another try later, or as a dead letter.

_DEAD = -1
#: Level of the first retry on the broker's ladder, as its users know it: 10 s.
_FIRST_LEVEL = 3
_MS = timedelta(milliseconds=1)


class SendBack(AsyncProducer):
    """Sends messages of a group back, as RocketMQ's push consumers do.

    Caller: AsyncPushConsumer.
    """

    def __init__(self, client: AsyncClient, group: str, max_times: int) -> None:
        super().__init__(client, "CLIENT_INNER_PRODUCER")
        self._consumers = group
        self._max_times = max_times

    async def give_back(
        self, queue: MessageQueue, message: StoredMessage, outcome: deliveries.Outcome
    ) -> None:
        """Send a message back for another delivery later, or make it a dead letter.

        Raises
        ------
        HeadraceError
            If both ways failed; the message is still the caller's.
        """
        level = _level(outcome)
        # A broker does not know where in a static topic the message lies, nor times between levels.
        if level is not None and queue.broker != LOGICAL_BROKER:
            try:
                await self._ask_broker(queue, message, level)
            except BrokerError:
                # It may have lost the message, or lack the topic: send it as a new message.
                pass
            else:
                return
        await self._send_anew(message, outcome)

    async def _ask_broker(self, queue: MessageQueue, message: StoredMessage, level: int) -> None:
        ext = {
            "offset": str(message.position),
            "group": self._consumers,
            "delayLevel": str(level),
            "originMsgId": message.unique_key or message.offset_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._max_times),
        }
        await self.client.ask_queue(queue, lambda: Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext))

    async def _send_anew(self, message: StoredMessage, outcome: deliveries.Outcome) -> None:
        properties = dict(message.properties)
        for name in (DELAY, TIMER_DELAY_MS, TRAN_MSG, RECONSUME_TIME, MAX_RECONSUME_TIMES):
            properties.pop(name, None)
        origin = message.unique_key or message.offset_id
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties[RETRY_TOPIC] = message.topic
        times = message.reconsume_times + 1
        if isinstance(outcome, deliveries.Retry):
            properties |= _wait(outcome, message.reconsume_times)
        else:
            # The broker makes a message that has come too often a dead letter.
            times = self._max_times + 1
        again = Message(
            topic=retry_topic(self._consumers),
            body=message.body,
            properties=properties,
            born=message.born,
            flag=message.flag,
        )
        fields, body, size = self._encoded(
            again, {UNIQ_KEY: origin} if not message.unique_key else {}
        )
        fields |= {"j": str(times), "l": str(self._max_times)}
        choose = self._chooser(again.topic, None, None)
        await self._send(choose, Command(RequestCode.SEND_MESSAGE_V2, fields, body), 1, size)


def _level(outcome: deliveries.Outcome) -> int | None:
    """Return the delay level that tells a broker what to do; None if there is none."""
    if not isinstance(outcome, deliveries.Retry):
        return _DEAD
    return outcome.level if outcome.delay is None else deliveries.delay_level_of(outcome.delay)


def _wait(retry: deliveries.Retry, times: int) -> dict[str, str]:
    if retry.delay is None:
        return {DELAY: str(retry.level or _FIRST_LEVEL + times)}
    level = deliveries.delay_level_of(retry.delay)
    return {DELAY: str(level)} if level is not None else {TIMER_DELAY_MS: str(retry.delay // _MS)}


logger = logging.getLogger(__name__)

GiveBack = Callable[["ProcessQueue", "StoredMessage", deliveries.Outcome], Awaitable[None]]
_PAUSE = 1.0


class Counts:
    """Counts of what became of the messages so far."""

    def __init__(self) -> None:
        self.processed = 0
        self.failed = 0
        self.timed_out = 0
        self.sent_back = 0
        self.dropped = 0
        #: When each call of the listener that still runs began, by the monotonic clock.
        self.running: dict[int, float] = {}


class MessageProcessing:
    """Brings single messages to the listener and acts on what it answers.

    Parameters
    ----------
    hear
        Calls the listener.
    give_back
        Sends a message back to the broker; None drops what fails, as in broadcasting.
    on_done
        Called after each message that needs no more memory.
    """

    def __init__(
        self,
        hear: Callable[[StoredMessage], Awaitable[Heard]],
        give_back: GiveBack | None,
        on_done: Callable[[], None],
    ) -> None:
        self.counts = Counts()
        self._hear = hear
        self._give_back = give_back
        self._on_done = on_done
        self._numbers = itertools.count()

    async def hear(self, message: StoredMessage) -> Heard:
        """Call the listener, and count the outcome."""
        counts, number = self.counts, next(self._numbers)
        counts.running[number] = time.monotonic()
        try:
            heard = await self._hear(message)
        finally:
            del counts.running[number]
        counts.failed += heard.failed
        counts.timed_out += heard.timed_out
        return heard

    def done(self, process: ProcessQueue, message: StoredMessage) -> None:
        """Note that a message was processed."""
        if not process.dropped:
            process.done(message.queue_offset)
            self.counts.processed += 1
        self._on_done()

    async def put_away(
        self, process: ProcessQueue, message: StoredMessage, outcome: deliveries.Outcome
    ) -> None:
        """Send a message back, and retry until that works or another member has the queue."""
        while not process.dropped:
            try:
                if self._give_back is None:
                    self.counts.dropped += 1
                else:
                    await self._give_back(process, message, outcome)
                    self.counts.sent_back += 1
                process.done(message.queue_offset)
            except HeadraceError as error:
                logger.warning("sending a message back to %s failed: %s", process.queue, error)
                await asyncio.sleep(_PAUSE)
            else:
                break
        self._on_done()


class Workers(Protocol):
    """Processes what is read."""

    def start(self, process: ProcessQueue) -> None:
        """Start to process a queue."""
        ...

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take ``count`` more messages of a queue."""
        ...

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no further message of a queue, and wait for those that run if need be."""
        ...

    async def stop(self, timeout: timedelta) -> None:
        """Begin no further message, and wait up to ``timeout`` for those that run."""
        ...


class ConcurrentWorkers:
    """Processes messages of all queues at once, in the order in which they came."""

    def __init__(
        self,
        processing: MessageProcessing,
        count: int,
        on_failure: OnFailure,
    ) -> None:
        self._processing = processing
        self._ready: asyncio.Queue[ProcessQueue | None] = asyncio.Queue()
        self._tasks = [
            watched_task(self._work(), name=f"push-worker {number}", on_failure=on_failure)
            for number in range(count)
        ]

    def start(self, process: ProcessQueue) -> None:
        """Do nothing: all workers process all queues."""

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take ``count`` more messages of a queue."""
        for _ in range(count):
            self._ready.put_nowait(process)

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no further message of a queue; the next member may repeat those that run."""
        process.drop()

    async def stop(self, timeout: timedelta) -> None:
        """Begin no further message, and wait up to ``timeout`` for those that run."""
        while not self._ready.empty():
            self._ready.get_nowait()
        for _ in self._tasks:
            self._ready.put_nowait(None)
        await _ended(self._tasks, timeout)

    async def _work(self) -> None:
        while (process := await self._ready.get()) is not None:
            if process.waiting:
                await self._process(process, process.waiting.popleft())

    async def _process(self, process: ProcessQueue, message: StoredMessage) -> None:
        processing = self._processing
        heard = await processing.hear(message)
        if heard.outcome is None:
            processing.done(process, message)
        elif heard.outcome is not deliveries.ABANDONED:
            await processing.put_away(process, message, heard.outcome)
        if heard.lingering is not None:
            # The thread is still busy: another message would only wait for it.
            await asyncio.wait({heard.lingering})


class OrderedWorkers:
    """Processes the messages of each queue one after the other, several queues at once.

    A message that fails holds up its queue until it succeeds or has failed too often.
    """

    def __init__(
        self,
        processing: MessageProcessing,
        count: int,
        *,
        suspend: timedelta,
        max_times: int,
        may_process: Callable[[ProcessQueue], bool],
        on_failure: OnFailure,
    ) -> None:
        self._processing = processing
        self._slots = asyncio.Semaphore(count)
        self._suspend = suspend
        self._max_times = max_times
        self._may_process = may_process
        self._on_failure = on_failure
        self._arrived: dict[ProcessQueue, asyncio.Event] = {}
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        #: Queues whose listener runs: they are not interrupted.
        self._busy: set[ProcessQueue] = set()
        self._ending: set[ProcessQueue] = set()
        self._stopping = timedelta(seconds=30)

    def start(self, process: ProcessQueue) -> None:
        """Start to process a queue as soon as its earlier work has ended."""
        before = [t for p, t in self._tasks.items() if p.queue == process.queue]
        self._arrived[process] = asyncio.Event()
        task = self._tasks[process] = watched_task(
            self._work(process, before),
            name=f"push-queue {process.queue}",
            on_failure=self._on_failure,
        )
        task.add_done_callback(lambda _: self._tasks.pop(process, None))

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take ``count`` more messages of a queue."""
        if count:
            self._arrived[process].set()

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no further message of a queue, and wait for the one that runs."""
        task = self._tasks.get(process)
        if task is not None:
            self._end(process, task)
            await _ended([task], self._stopping)
        self._arrived.pop(process, None)

    async def stop(self, timeout: timedelta) -> None:
        """Begin no further message, and wait up to ``timeout`` for those that run."""
        for process, task in list(self._tasks.items()):
            self._end(process, task)
        await _ended(list(self._tasks.values()), timeout)

    def _end(self, process: ProcessQueue, task: asyncio.Task[None]) -> None:
        self._ending.add(process)
        if process not in self._busy:
            task.cancel()

    async def _work(self, process: ProcessQueue, before: list[asyncio.Task[None]]) -> None:
        try:
            if before:
                await asyncio.wait(before)
            arrived = self._arrived[process]
            while process not in self._ending and not process.dropped:
                if process.waiting:
                    await self._process(process, process.waiting.popleft())
                else:
                    arrived.clear()
                    await arrived.wait()
        finally:
            self._ending.discard(process)

    async def _process(self, process: ProcessQueue, message: StoredMessage) -> None:
        while not process.dropped and process not in self._ending and self._may_process(process):
            outcome = await self._hear(process, message)
            if outcome is None:
                self._processing.done(process, message)
                return
            if outcome is deliveries.ABANDONED:
                return
            if outcome is deliveries.DEAD_LETTER or message.reconsume_times >= self._max_times:
                await self._processing.put_away(process, message, deliveries.DEAD_LETTER)
                return
            message = replace(message, reconsume_times=message.reconsume_times + 1)
            if process not in self._ending:
                await asyncio.sleep(self._pause(outcome).total_seconds())

    async def _hear(self, process: ProcessQueue, message: StoredMessage) -> deliveries.Outcome:
        async with self._slots:
            self._busy.add(process)
            try:
                heard = await self._processing.hear(message)
                if heard.lingering is not None:
                    # Later messages must not overtake it.
                    await asyncio.wait({heard.lingering})
                return heard.outcome
            finally:
                self._busy.discard(process)

    def _pause(self, outcome: deliveries.Outcome) -> timedelta:
        if isinstance(outcome, deliveries.Retry):
            if outcome.level:
                return deliveries.DELAY_LEVELS[outcome.level - 1]
            if outcome.delay is not None:
                return outcome.delay
        return self._suspend


async def _ended(tasks: list[asyncio.Task[None]], timeout: timedelta) -> None:
    """Wait for tasks to end, and cancel those that still run after the timeout."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout.total_seconds())
    for task in late:
        logger.warning("a listener did not end within %s: cancelled", format_duration(timeout))
        task.cancel()
    if late:
        await asyncio.wait(late)
