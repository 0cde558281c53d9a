"""Processing what was read: at once on many workers, or queue by queue in order."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from headrace.client.outcomes import ABANDONED, DEAD_LETTER, DELAY_LEVELS, Outcome, Retry
from headrace.errors import HeadraceError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client._listening import Heard
    from headrace.client._process_queue import ProcessQueue
    from headrace.protocol.messages import StoredMessage

__all__ = ["ConcurrentWorkers", "Counts", "OrderedWorkers", "Processing", "Workers"]

_log = logging.getLogger("headrace.client")

GiveBack = Callable[["ProcessQueue", "StoredMessage", Outcome], Awaitable[None]]
_PAUSE = 1.0


class Counts:
    """What became of the messages so far."""

    def __init__(self) -> None:
        self.processed = 0
        self.failed = 0
        self.timed_out = 0
        self.sent_back = 0
        self.dropped = 0
        #: When each call of the listener that still runs began, by the monotonic clock.
        self.running: dict[int, float] = {}


class Processing:
    """Brings single messages to the listener and acts on what it answers.

    Parameters
    ----------
    hear
        Calls the listener.
    give_back
        Sends a message back to the broker; None: what fails is dropped, as in broadcasting.
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
        """Call the listener, and count how it went."""
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
        self, process: ProcessQueue, message: StoredMessage, outcome: Outcome
    ) -> None:
        """Send a message back, again until that works or somebody else has the queue."""
        while not process.dropped:
            try:
                if self._give_back is None:
                    self.counts.dropped += 1
                else:
                    await self._give_back(process, message, outcome)
                    self.counts.sent_back += 1
                process.done(message.queue_offset)
            except HeadraceError as error:
                _log.warning("sending a message back to %s failed: %s", process.queue, error)
                await asyncio.sleep(_PAUSE)
            else:
                break
        self._on_done()


class Workers(Protocol):
    """Something that processes what is read."""

    def start(self, process: ProcessQueue) -> None:
        """Look after a queue from now on."""
        ...

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take so many more messages of a queue."""
        ...

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no more message of a queue, and see those that run to their end if need be."""
        ...

    async def stop(self, timeout: timedelta) -> None:
        """Begin no more message; wait for those that run, but not for ever."""
        ...


class ConcurrentWorkers:
    """Processes messages of all queues at once, in the order in which they came."""

    def __init__(
        self,
        processing: Processing,
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
        """Look after a queue: all workers look after all queues."""

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take so many more messages of a queue."""
        for _ in range(count):
            self._ready.put_nowait(process)

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no more message of a queue: the next member may process those that run again."""
        process.drop()

    async def stop(self, timeout: timedelta) -> None:
        """Begin no more message; wait for those that run, but not for ever."""
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
        elif heard.outcome is not ABANDONED:
            await processing.put_away(process, message, heard.outcome)
        if heard.lingering is not None:
            # The thread is still busy: a next message would only wait for it.
            await asyncio.wait({heard.lingering})


class OrderedWorkers:
    """Processes the messages of each queue one after the other, several queues at once.

    A message that fails holds up its queue until it succeeds or has failed too often.
    """

    def __init__(
        self,
        processing: Processing,
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
        """Look after a queue from now on, when what ran of it before has ended."""
        before = [t for p, t in self._tasks.items() if p.queue == process.queue]
        self._arrived[process] = asyncio.Event()
        task = self._tasks[process] = watched_task(
            self._work(process, before),
            name=f"push-queue {process.queue}",
            on_failure=self._on_failure,
        )
        task.add_done_callback(lambda _: self._tasks.pop(process, None))

    def ready(self, process: ProcessQueue, count: int) -> None:
        """Take so many more messages of a queue."""
        if count:
            self._arrived[process].set()

    async def finish(self, process: ProcessQueue) -> None:
        """Begin no more message of a queue, and see the one that runs to its end."""
        task = self._tasks.get(process)
        if task is not None:
            self._end(process, task)
            await _ended([task], self._stopping)
        self._arrived.pop(process, None)

    async def stop(self, timeout: timedelta) -> None:
        """Begin no more message; wait for those that run, but not for ever."""
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
            if outcome is ABANDONED:
                return
            if outcome is DEAD_LETTER or message.reconsume_times >= self._max_times:
                await self._processing.put_away(process, message, DEAD_LETTER)
                return
            message = replace(message, reconsume_times=message.reconsume_times + 1)
            if process not in self._ending:
                await asyncio.sleep(self._pause(outcome).total_seconds())

    async def _hear(self, process: ProcessQueue, message: StoredMessage) -> Outcome:
        async with self._slots:
            self._busy.add(process)
            try:
                heard = await self._processing.hear(message)
                if heard.lingering is not None:
                    # What comes next must not overtake it.
                    await asyncio.wait({heard.lingering})
                return heard.outcome
            finally:
                self._busy.discard(process)

    def _pause(self, outcome: Outcome) -> timedelta:
        if isinstance(outcome, Retry):
            if outcome.level:
                return DELAY_LEVELS[outcome.level - 1]
            if outcome.delay is not None:
                return outcome.delay
        return self._suspend


async def _ended(tasks: list[asyncio.Task[None]], timeout: timedelta) -> None:
    """Wait for tasks to end; after the time they are cancelled."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout.total_seconds())
    for task in late:
        _log.warning("a listener did not end within %g s: cancelled", timeout.total_seconds())
        task.cancel()
    if late:
        await asyncio.wait(late)
