"""One background event loop per process, on which the blocking face runs the async one.

A process that forks takes no thread along: the child starts a loop of its own at its first call.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["Caller", "LoopThread", "called_by", "loop_thread"]

T = TypeVar("T")


class Caller(Protocol):
    """Runs coroutines for the blocking face: a loop in a thread, or a simulation of one."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that they run on."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result."""

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine and do not wait for it."""


class _Call(Generic[T]):
    """One coroutine on its way through the loop, awaited by a thread.

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
        """Let nobody wait for a loop that has ended."""
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
            If called on the loop's own thread, which would wait for itself; or that thread has
            ended by an error.
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
_provide: Callable[[], Caller | None] | None = None
_starting = threading.Lock()
# Loops of a parent process: finalising one would unregister the parent's own descriptors from the
# epoll set that both processes share.
_inherited: list[LoopThread] = []


@contextmanager
def called_by(provide: Callable[[], Caller | None]) -> Iterator[None]:
    """Let blocking calls of this process be run by what ``provide`` gives at each; None: as ever.

    For simulations: one thread, a clock of its own, connections in memory.
    """
    global _provide
    before, _provide = _provide, provide
    try:
        yield
    finally:
        _provide = before


def loop_thread() -> Caller:
    """The loop of this process, started at the first call."""
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
