"""The blocking face: the same classes without ``async``, run on one background loop per process.

Every method does what the method of the same name does in the asynchronous class.
All objects may be used from several threads, and in a child process after a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from headrace.client.admin import AsyncAdmin
from headrace.client.client import AsyncClient, Openable
from headrace.client.groups import AsyncGroupConsumer, GroupOptions
from headrace.client.jobs import AsyncJobs
from headrace.client.producer import AsyncProducer
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.push import AsyncPushConsumer
from headrace.client.tables import AsyncTableReader, AsyncTableWriter
from headrace.client.transactions import (
    AsyncTransactionProducer,
    Check,
    LocalTransactionState,
    Transaction,
)
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from headrace.client._listening import Listener
    from headrace.client.push_options import PushOptions
    from headrace.client.settings import ClientSettings
    from headrace.protocol.messages import Message
    from headrace.protocol.routes import MessageQueue


# One background event loop per process, on which the blocking face runs the async one.
#
# A process that forks takes no thread along: the child starts a loop of its own at its first call.

T = TypeVar("T")


class LoopCaller(Protocol):
    """Runs coroutines for the blocking face: a loop in a thread, or a simulation of one."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that they run on."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result."""

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine and do not wait for it."""


class _Call(Generic[T]):
    """A coroutine on its way through the loop, awaited by a thread.

    A bare lock costs a third of what a ``concurrent.futures.Future`` with its condition costs.
    """

    __slots__ = ("_coroutine", "_done", "_failure", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._failure: BaseException | None = None
        self._task: asyncio.Task[T] | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def _finish(self, _: asyncio.Task[T]) -> None:
        self._done.release()

    def fail(self, error: BaseException) -> None:
        self._failure = error
        if self._task is None:
            self._coroutine.close()
        with suppress(RuntimeError):  # it was done just before
            self._done.release()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> T:
        self._done.acquire()
        if self._failure is not None:
            raise _ended(self._failure)
        assert self._task is not None
        return self._task.result()


class LoopThread:
    """An event loop that runs in a daemon thread of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        #: Calls that a thread waits for.
        self._calls: set[_Call[Any]] = set()
        #: The error that has ended the thread; :func:`loop_thread` then starts another one.
        self.failure: BaseException | None = None
        self._thread = watched_thread(self._run, name="headrace-client", on_failure=self._fail)
        self._thread.start()
        atexit.register(self.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _fail(self, error: BaseException) -> None:
        """Fail all calls, as a loop that has ended answers none."""
        self.failure = error
        self._end_calls()

    def _end_calls(self) -> None:
        while self.failure is not None and self._calls:
            self._calls.pop().fail(self.failure)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        An interrupt (Ctrl-C) cancels it.

        Raises
        ------
        RuntimeError
            If called on the loop's own thread, which would wait for itself, or if that thread has
            ended with an error.
        """
        if threading.get_ident() == self._thread.ident:
            coroutine.close()
            raise RuntimeError("the blocking client was called on its own event loop")
        if self.failure is not None:
            coroutine.close()
            raise _ended(self.failure)
        call = _Call(coroutine)
        self._calls.add(call)
        self._end_calls()  # it may have ended just now
        self.loop.call_soon_threadsafe(call.start)
        try:
            return call.wait()
        except KeyboardInterrupt:
            self.loop.call_soon_threadsafe(call.cancel)
            raise
        finally:
            self._calls.discard(call)

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop and do not wait for it."""
        if self.loop.is_closed():
            coroutine.close()
        else:
            asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """End the thread and close the loop; in a forked child there is neither."""
        if self.pid != os.getpid() or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self._finish)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self.loop.close()

    def _finish(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        # One more round of the loop lets the cancelled tasks end.
        self.loop.call_soon(self.loop.stop)


_current: LoopThread | None = None
_provide: Callable[[], LoopCaller | None] | None = None
_starting = threading.Lock()
# Loops of a parent process: finalising one would unregister the parent's own descriptors from the
# epoll set that both processes share.
_inherited: list[LoopThread] = []


@contextmanager
def called_by(provide: Callable[[], LoopCaller | None]) -> Iterator[None]:
    """Run each blocking call of this process by what ``provide`` returns; None means as usual.

    For simulations: one thread, a clock of its own, connections in memory.
    """
    global _provide
    before, _provide = _provide, provide
    try:
        yield
    finally:
        _provide = before


def loop_thread() -> LoopCaller:
    """Return the loop of this process, which starts at the first call."""
    global _current
    given = None if _provide is None else _provide()
    if given is not None:
        return given
    current = _current
    if current is not None and current.pid == os.getpid() and current.failure is None:
        return current
    with _starting:
        if _current is None or _current.pid != os.getpid() or _current.failure is not None:
            if _current is not None:
                _inherited.append(_current)
            _current = LoopThread()
        return _current


def _ended(error: BaseException) -> RuntimeError:
    failure = RuntimeError(f"the client's event loop has ended: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _forget_lock() -> None:
    # Another thread of the parent may have held it at the moment of the fork.
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


# A blocking twin is made from an asynchronous class one method at a time, with types kept.

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound=Openable)
# A method made for a class also serves its subclasses.
A_co = TypeVar("A_co", bound=Openable, covariant=True)


class Twin(Generic[A_co]):
    """A blocking object that hands its calls to an asynchronous one on the background loop."""

    def __init__(self, inner: A_co) -> None:
        self._inner = inner

    @property
    def asynchronous(self) -> A_co:
        """The object that does the work, for use on the background loop only."""
        return self._inner

    def start(self) -> None:
        """Begin what goes on in the background."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop_thread().call(self._inner.__aexit__(kind, error, trace))


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """Make the blocking form of a coroutine method."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return loop_thread().call(method(self._inner, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[A, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Twin[A], P], Iterator[R]]:
    """Make the blocking form of an asynchronous generator method."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        thread = loop_thread()
        items = method(self._inner, *args, **kwargs)
        try:
            while True:
                try:
                    yield thread.call(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            # Not awaited: the garbage collector may end this generator on any thread.
            thread.start(items.aclose())

    return call


def same(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Twin[A], P], R]:
    """Take over a method that does not wait."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._inner, *args, **kwargs)

    return call


class Client(Twin[AsyncClient]):
    """Connections to a cluster, shared by the producers, consumers and admins made with it.

    Parameters
    ----------
    namesrv
        Addresses of the name servers, ``host:port`` separated by ``;``.
    settings
        Time limits and sizes.

    Examples
    --------
    >>> from headrace.client import Admin, Client
    >>> def topics() -> list[str]:
    ...     with Client("127.0.0.1:9876") as client:
    ...         return Admin(client).topics()
    """

    def __init__(self, namesrv: str, settings: ClientSettings | None = None) -> None:
        super().__init__(AsyncClient(namesrv, settings))

    @property
    def settings(self) -> ClientSettings:
        """Time limits and sizes."""
        return self.asynchronous.settings

    close = blocking(AsyncClient.close)
    invoke = blocking(AsyncClient.invoke)
    ask_broker = blocking(AsyncClient.ask_broker)
    route = blocking(AsyncClient.route)
    queues = blocking(AsyncClient.queues)
    cluster_info = blocking(AsyncClient.cluster_info)
    brokers = blocking(AsyncClient.brokers)
    broker_address = blocking(AsyncClient.broker_address)
    is_headrace = blocking(AsyncClient.is_headrace)
    expect = same(AsyncClient.expect)
    forget_route = same(AsyncClient.forget_route)
    statistics = same(AsyncClient.statistics)


class Producer(Twin[AsyncProducer]):
    """Sends messages: see ``AsyncProducer``."""

    def __init__(self, client: Client, group: str | None = None) -> None:
        super().__init__(AsyncProducer(client.asynchronous, group))

    send = blocking(AsyncProducer.send)
    send_oneway = blocking(AsyncProducer.send_oneway)
    send_batch = blocking(AsyncProducer.send_batch)
    send_many = blocking(AsyncProducer.send_many)
    send_columns = blocking(AsyncProducer.send_columns)
    queue_for = blocking(AsyncProducer.queue_for)
    statistics = same(AsyncProducer.statistics)


class TableReader(Twin[AsyncTableReader]):
    """The table that a compaction topic holds: see ``AsyncTableReader``.

    ``get`` and ``items`` answer from memory, on the calling thread.
    """

    def __init__(
        self, client: Client, topic: str, *, wait: timedelta = timedelta(seconds=15)
    ) -> None:
        super().__init__(AsyncTableReader(client.asynchronous, topic, wait=wait))

    def __contains__(self, key: object) -> bool:
        return key in self.asynchronous

    def __len__(self) -> int:
        return len(self.asynchronous)

    start = blocking(AsyncTableReader.start)
    close = blocking(AsyncTableReader.close)
    caught_up = blocking(AsyncTableReader.caught_up)
    wait_until = blocking(AsyncTableReader.wait_until)
    get = same(AsyncTableReader.get)
    items = same(AsyncTableReader.items)
    statistics = same(AsyncTableReader.statistics)


class TableWriter(Twin[AsyncTableWriter]):
    """Writes a table: see ``AsyncTableWriter``."""

    def __init__(self, client: Client, topic: str) -> None:
        super().__init__(AsyncTableWriter(client.asynchronous, topic))

    put = blocking(AsyncTableWriter.put)
    delete = blocking(AsyncTableWriter.delete)


class TransactionProducer(Twin[AsyncTransactionProducer]):
    """Sends messages that belong to a transaction: see ``AsyncTransactionProducer``."""

    def __init__(self, client: Client, group: str, check: Check) -> None:
        super().__init__(AsyncTransactionProducer(client.asynchronous, group, check))

    @contextlib.contextmanager
    def transaction(
        self, message: Message, queue: MessageQueue | None = None
    ) -> Iterator[Transaction]:
        """Send a half message, and end its transaction with the block."""
        half = self.begin(message, queue)
        try:
            yield half
        except BaseException:
            if half.state is LocalTransactionState.COMMIT_MESSAGE:
                half.leave_open()
            raise
        finally:
            self.end(half)

    start = blocking(AsyncTransactionProducer.start)
    close = blocking(AsyncTransactionProducer.close)
    begin = blocking(AsyncTransactionProducer.begin)
    end = blocking(AsyncTransactionProducer.end)
    send_in_transaction = blocking(AsyncTransactionProducer.send_in_transaction)
    send = blocking(AsyncProducer.send)
    send_oneway = blocking(AsyncProducer.send_oneway)
    send_batch = blocking(AsyncProducer.send_batch)
    send_many = blocking(AsyncProducer.send_many)
    queue_for = blocking(AsyncProducer.queue_for)
    transaction_statistics = same(AsyncTransactionProducer.transaction_statistics)


class PullConsumer(Twin[AsyncPullConsumer]):
    """Reads queues by offset: see ``AsyncPullConsumer``."""

    def __init__(
        self, client: Client, group: str | None = None, *, committed: bool = False
    ) -> None:
        super().__init__(AsyncPullConsumer(client.asynchronous, group, committed=committed))

    pull = blocking(AsyncPullConsumer.pull)
    blocks = blocking_iterator(AsyncPullConsumer.blocks)
    begin_offset = blocking(AsyncPullConsumer.begin_offset)
    begin_offsets = blocking(AsyncPullConsumer.begin_offsets)
    end_offset = blocking(AsyncPullConsumer.end_offset)
    end_offsets = blocking(AsyncPullConsumer.end_offsets)
    offset_for_time = blocking(AsyncPullConsumer.offset_for_time)
    offsets_for_time = blocking(AsyncPullConsumer.offsets_for_time)
    committed = blocking(AsyncPullConsumer.committed)
    commit = blocking(AsyncPullConsumer.commit)
    statistics = same(AsyncPullConsumer.statistics)


class Jobs(Twin[AsyncJobs]):
    """The commit protocol of an embedded broker: see ``AsyncJobs``."""

    def __init__(self, client: Client, commit_topic: str) -> None:
        super().__init__(AsyncJobs(client.asynchronous, commit_topic))

    open = blocking(AsyncJobs.open)
    plan = blocking(AsyncJobs.plan)
    stage = blocking(AsyncJobs.stage)
    commit = blocking(AsyncJobs.commit)


class GroupConsumer(Twin[AsyncGroupConsumer]):
    """A member of a consumer group: see ``AsyncGroupConsumer``.

    It reads in the background, so it does not survive a fork.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        options: GroupOptions | None = None,
    ) -> None:
        super().__init__(AsyncGroupConsumer(client.asynchronous, group, topics, options))

    start = blocking(AsyncGroupConsumer.start)
    close = blocking(AsyncGroupConsumer.close)
    poll = blocking(AsyncGroupConsumer.poll)
    commit = blocking(AsyncGroupConsumer.commit)
    assignment = same(AsyncGroupConsumer.assignment)
    statistics = same(AsyncGroupConsumer.statistics)


class PushConsumer(Twin[AsyncPushConsumer]):
    """A member of a consumer group that calls a listener: see ``AsyncPushConsumer``.

    A plain listener runs on threads of its own and may use this blocking client.

    Examples
    --------
    >>> def serve(client: Client) -> None:
    ...     PushConsumer(client, "printers", ["lines"], lambda m: print(m.body)).run()
    """

    def __init__(
        self,
        client: Client,
        group: str,
        subscriptions: Sequence[str] | Mapping[str, str],
        listener: Listener | None = None,
        options: PushOptions | None = None,
    ) -> None:
        super().__init__(
            AsyncPushConsumer(client.asynchronous, group, subscriptions, listener, options)
        )

    __iter__ = blocking_iterator(AsyncPushConsumer.messages)
    messages = blocking_iterator(AsyncPushConsumer.messages)
    start = blocking(AsyncPushConsumer.start)
    run = blocking(AsyncPushConsumer.run)
    close = blocking(AsyncPushConsumer.close)
    assignment = same(AsyncPushConsumer.assignment)
    statistics = same(AsyncPushConsumer.statistics)

    def close_soon(self) -> None:
        """Begin to close, for a listener that must not wait for its own end."""
        loop_thread().loop.call_soon_threadsafe(self.asynchronous.close_soon)


class Admin(Twin[AsyncAdmin]):
    """Looks after a cluster: see ``AsyncAdmin``."""

    def __init__(self, client: Client) -> None:
        super().__init__(AsyncAdmin(client.asynchronous))

    create_topic = blocking(AsyncAdmin.create_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    topics = blocking(AsyncAdmin.topics)
    topic_exists = blocking(AsyncAdmin.topic_exists)
    topic_config = blocking(AsyncAdmin.topic_config)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    topic_groups = blocking(AsyncAdmin.topic_groups)
    group_progress = blocking(AsyncAdmin.group_progress)
    group_members = blocking(AsyncAdmin.group_members)
    set_group_offsets = blocking(AsyncAdmin.set_group_offsets)
    groups = blocking(AsyncAdmin.groups)
    group_config = blocking(AsyncAdmin.group_config)
    set_group_config = blocking(AsyncAdmin.set_group_config)
    lag = blocking(AsyncAdmin.lag)
    reset_group = blocking(AsyncAdmin.reset_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    cluster_info = blocking(AsyncAdmin.cluster_info)
    broker_status = blocking(AsyncAdmin.broker_status)
    broker_config = blocking(AsyncAdmin.broker_config)
    message = blocking(AsyncAdmin.message)
    message_by_id = blocking(AsyncAdmin.message_by_id)
    messages_by_key = blocking(AsyncAdmin.messages_by_key)
    jobs = blocking(AsyncAdmin.jobs)
