"""What goes on beside requests, and what they wait for: appends, and messages to come."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import HeadraceError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.store import AppendResult, MessageStore, QueueAppend


T = TypeVar("T")


class BackgroundWork:
    """What goes on beside the requests: calls in threads and from threads, and tasks.

    Waking a loop costs a system call, so calls that come while it is being woken share one.

    Parameters
    ----------
    on_failure
        Told of the error that has ended a part of the broker, which has to end then.
    """

    def __init__(self, on_failure: OnFailure) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._calls: deque[Callable[[], None]] = deque()
        self._waking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="headrace-broker")

    async def in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """Make a call that may wait for the disk."""
        return await self.loop.run_in_executor(self.pool, partial(call, *arguments))

    def post(self, call: Callable[[], None]) -> None:
        """Schedule a call on the loop, from any thread."""
        self._calls.append(call)
        if not self._waking:
            self._waking = True
            # The loop is closed only when nobody waits for an answer any more.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            calls.popleft()()

    def start_task(self, work: Coroutine[None, None, None]) -> None:
        """Let work go on by itself."""
        self._hold(self.loop.create_task(work))

    def keep(self, name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let work go on for as long as the broker does, which ends where it ends by an error."""
        return self._hold(
            watched_task(work, name=name, on_failure=self._on_failure, loop=self.loop)
        )

    def _hold(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# Appends of one round of the loop, handed to the store together.


@dataclass(slots=True)
class AppendOutcome:
    """How an append ended: a result for each queue, or what went wrong."""

    results: list[AppendResult]
    error: BaseException | None = None


OnAppended = Callable[[AppendOutcome], None]
"""Told, on the loop, how an append ended."""


class Appends:
    """Gathers what one round of the loop appends, so that it costs one write and one wake-up.

    Parameters
    ----------
    store
        Where messages go.
    work
        The way back to the loop, whose thread makes all calls.
    """

    def __init__(self, store: MessageStore, work: BackgroundWork) -> None:
        self._store = store
        self._work = work
        self._gathered: list[tuple[list[QueueAppend], OnAppended]] = []

    def add(self, appends: list[QueueAppend], done: OnAppended) -> None:
        """Append with whatever else comes in this round, in the order of the calls.

        Raises
        ------
        MessageTooLargeError, InvalidParameterError
            As :meth:`MessageStore.append`; the others of the round go on.
        """
        for append in appends:
            self._store.check(append)
        self._gathered.append((appends, done))
        if len(self._gathered) == 1:
            self._work.loop.call_soon(self.submit)

    def submit(self) -> None:
        """Submit the gathered appends to the store."""
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        appends = [append for each, _ in gathered for append in each]
        try:
            future = self._store.append(appends, checked=True)
        except HeadraceError as error:
            _tell(gathered, [], error)
            return
        if future.done():
            _finish(gathered, future)
        else:
            future.add_done_callback(
                lambda ended: self._work.post(partial(_finish, gathered, ended))
            )


def _finish(
    gathered: list[tuple[list[QueueAppend], OnAppended]], ended: Future[list[AppendResult]]
) -> None:
    error = ended.exception()
    _tell(gathered, [] if error else ended.result(), error)


def _tell(
    gathered: list[tuple[list[QueueAppend], OnAppended]],
    results: list[AppendResult],
    error: BaseException | None,
) -> None:
    first = 0
    for appends, done in gathered:
        last = first + len(appends)
        done(AppendOutcome(results[first:last], error))
        first = last


# Long polls: requests that wait for the next message of some queues.

Queue = tuple[str, int]
"""A topic and a queue id."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class Poll:
    """One waiting request."""

    #: Queues whose next message ends the wait.
    queues: tuple[Queue, ...]
    #: Connection that asked.
    owner: int
    #: Answer the request from what is there now.
    wake: Callable[[], None]


class LongPolls:
    """All requests that wait for messages, by queue.

    Examples
    --------
    >>> polls = LongPolls()
    >>> poll = polls.add([("lines", 0), ("lines", 1)], owner=7, wake=lambda: None)
    >>> polls.arrived([("lines", 1)]) == [poll], len(polls)
    (True, 0)
    """

    def __init__(self) -> None:
        #: In the order in which they came: who has waited longest is answered first.
        self._by_queue: dict[Queue, dict[Poll, None]] = {}
        self._by_owner: dict[int, dict[Poll, None]] = {}
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits; any thread may ask."""
        return not self._by_owner

    def __len__(self) -> int:
        return self._count

    def of(self, owner: int) -> int:
        """Count the requests of a connection that wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, queues: Iterable[Queue], *, owner: int, wake: Callable[[], None]) -> Poll:
        """Register a request that waits."""
        poll = Poll(tuple(queues), owner, wake)
        for queue in poll.queues:
            self._by_queue.setdefault(queue, {})[poll] = None
        self._by_owner.setdefault(owner, {})[poll] = None
        self._count += 1
        return poll

    def arrived(self, queues: Collection[Queue]) -> list[Poll]:
        """Take out the requests that waited for a message of these queues."""
        if not self._by_queue:
            return []
        waiting: dict[Poll, None] = {}
        for queue in queues:
            waiting |= self._by_queue.get(queue, {})
        return [poll for poll in waiting if self.remove(poll)]

    def remove(self, poll: Poll) -> bool:
        """Take out one request; return False when it no longer waits."""
        owned = self._by_owner.get(poll.owner)
        if owned is None or poll not in owned:
            return False
        _discard(self._by_owner, poll.owner, poll)
        self._count -= 1
        for queue in poll.queues:
            _discard(self._by_queue, queue, poll)
        return True

    def abandon(self, owner: int) -> None:
        """Take out every request of a connection that is gone."""
        for poll in list(self._by_owner.get(owner, ())):
            self.remove(poll)


def _discard(table: dict[K, dict[Poll, None]], key: K, poll: Poll) -> None:
    polls = table.get(key)
    if polls is not None:
        polls.pop(poll, None)
        if not polls:
            del table[key]
