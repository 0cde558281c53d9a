"""Calling the user's functions: fast on good records, precise about the bad one."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headrace.errors import HeadraceError, UserCodeError
from headrace.runtime.user_code.failures import may_pass
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from headrace.runtime.chunk import Bools, Chunk, Int64s
    from headrace.runtime.user_code.errors import Original
    from headrace.topology.operators.core import Operator, RecordFunction


# Awaiting many calls of a coroutine function at once, with the results in order.


def call_all(
    function: Callable[..., Awaitable[Any]],
    calls: Sequence[tuple[Any, ...]],
    max_in_flight: int,
    *,
    stops: bool,
) -> tuple[list[Any], dict[int, Exception]]:
    """Await the function for each tuple of arguments; give results in order, and failures.

    All calls of a process run on one event loop, so that what the function keeps open, a
    session for example, serves later batches too.

    Parameters
    ----------
    function
        Gives what is awaited.
    calls
        Arguments of each call.
    max_in_flight
        So many calls wait at the same time.
    stops
        No call begins behind one that failed; those before it end, so that the first failure is
        always the same.
    """
    batch = _Calls(function, calls, stops=stops)
    _run(batch.gather(max_in_flight))
    return batch.results, batch.failures


class _Calls:
    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        calls: Sequence[tuple[Any, ...]],
        *,
        stops: bool,
    ) -> None:
        self._function = function
        self._calls = calls
        self._stops = stops
        self._next = 0
        self._end = len(calls)
        self.results: list[Any] = [None] * len(calls)
        self.failures: dict[int, Exception] = {}

    async def gather(self, max_in_flight: int) -> None:
        count = min(max_in_flight, len(self._calls))
        workers = [asyncio.ensure_future(self._work()) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    async def _work(self) -> None:
        while self._next < self._end:
            index = self._next
            self._next += 1
            try:
                self.results[index] = await self._function(*self._calls[index])
            except Exception as error:  # noqa: BLE001 - users' functions raise what they like
                self.failures[index] = error
                if self._stops:
                    self._end = index


class _Loops(threading.local):
    """The event loop of this thread."""

    runner: asyncio.Runner | None = None
    pid = 0


_loops = _Loops()


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _runner().run(coroutine)
        return
    # The caller's own loop waits for us, so another thread has to run this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


def _runner() -> asyncio.Runner:
    if _loops.runner is None or _loops.pid != os.getpid():
        _loops.runner, _loops.pid = asyncio.Runner(), os.getpid()
        atexit.register(_loops.runner.close)
    return _loops.runner


class _Skipped:
    def __repr__(self) -> str:
        return "SKIPPED"


#: What :meth:`UserFunction.call` gives for a record that the operator's policy took out.
SKIPPED = _Skipped()


class Locator(Protocol):
    """Tells where the record with a mark comes from, and takes out those that fail."""

    def locate(self, mark: int) -> str:
        """Describe the place, e.g. ``topic 'lines', queue 2, offset 17``."""

    def divert(self, operator: Operator, mark: int, error: Exception, line: str | None) -> None:
        """Count a record that failed and send its message where the operator's policy says."""

    def divert_message(self, operator: Operator, original: Original, error: Exception) -> None:
        """Do the same with a message of which no record could be made."""


class UserFunction:
    """One function of the user's, called for many records at once.

    Parameters
    ----------
    operator
        The operator that it belongs to: named in errors, and its ``on_error`` is followed.
    function
        Called once per item.
    locator
        Turns a record's mark into its place, for errors.
    """

    __slots__ = ("_function", "_locator", "_operator", "_skips")

    def __init__(self, operator: Operator, function: Callable[..., Any], locator: Locator) -> None:
        self._operator = operator
        self._function = function
        self._locator = locator
        self._skips = operator.on_error != "fail"

    def each(
        self, chunk: Chunk, *columns: Iterable[Any], step: Callable[..., Any] | None = None
    ) -> tuple[Chunk, list[Any]]:
        """Call the function for each record; give the records that it could handle, and results.

        Parameters
        ----------
        chunk
            The records that the columns are of.
        columns
            The function's arguments.
        step
            Called in place of the function: a part of its work that is done later, such as
            walking through what a generator function gives.
        """
        if not self._skips and step is None:
            return chunk, self.over(chunk.marks, *columns)
        results: list[Any] = []
        bad: list[int] = []
        # The iterator goes on behind a record that raised.
        calls = map(step or self._function, *columns)
        while len(results) + len(bad) < len(chunk):
            try:
                results.extend(calls)
                error: Exception | None = None
            except Exception as raised:  # noqa: BLE001 - user functions raise what they like
                error = raised
            at = len(results) + len(bad)
            if at < len(chunk):
                self.take_out(error or _stopped(), int(chunk.marks[at]))
                bad.append(at)
        return without_bad(chunk, bad), results

    def over(self, marks: Int64s, *columns: Iterable[Any]) -> list[Any]:
        """Call the function for each item and give the results; a failure stops the job.

        ``list.extend`` keeps what came before an exception, so its length is the index of the
        record that raised: no bookkeeping on the fast path.
        """
        results: list[Any] = []
        try:
            results.extend(map(self._function, *columns))
        except Exception as error:
            raise self.failure(error, int(marks[len(results)])) from error
        if len(results) < len(marks):
            raise self.failure(_stopped(), int(marks[len(results)]))
        return results

    def call(self, mark: int, *arguments: Any) -> Any:
        """Call the function once; :data:`SKIPPED` for a record that the policy takes out."""
        try:
            return self._function(*arguments)
        except Exception as error:  # noqa: BLE001 - user functions raise what they like
            self.take_out(error, mark)
            return SKIPPED

    def failure(self, error: Exception, mark: int) -> Exception:
        """Make the error that names operator, record, function and the user's own line."""
        if isinstance(error, HeadraceError) or may_pass(error):
            return error
        line = user_line(error, self._function)
        return UserCodeError(
            f"operator '{self._operator.name}' failed on the record at"
            f" {self._locator.locate(mark)}: {type(error).__name__}: {error}"
            + ("" if line is None else f"\n  at {line}"),
            hint=f"the operator was made at {self._operator.origin}; nothing of this batch was"
            " committed: correct the function and start again, or give the operator"
            ' on_error="skip" or on_error="topic:NAME" to go on without such records',
        )

    def take_out(self, error: Exception, mark: int) -> None:
        """Raise what a record failed with, or follow the policy to go on without the record."""
        if not self._skips or may_pass(error):
            raise self.failure(error, mark) from error
        self._locator.divert(self._operator, mark, error, user_line(error, self._function))


def without_bad(chunk: Chunk, bad: list[int]) -> Chunk:
    """Leave out records, by their indices."""
    return chunk.take(np.delete(np.arange(len(chunk)), bad)) if bad else chunk


def _stopped() -> Exception:
    # ``map`` takes a StopIteration out of the function for its own end.
    return RuntimeError("the function raised StopIteration")


# Calling the user's functions of the value, or of key and value, for whole chunks.


class RecordCalls:
    """One function of the records that reach an operator.

    Parameters
    ----------
    operator
        The operator that it belongs to, named in errors.
    function
        What to call, and with what.
    locator
        Turns a record's mark into its place, for errors.
    """

    def __init__(self, operator: Operator, function: RecordFunction, locator: Locator) -> None:
        self._takes_key = function.takes_key
        self._function = UserFunction(operator, function.function, locator)

    def each(self, chunk: Chunk) -> tuple[Chunk, list[Any]]:
        """Call the function for each record; give those that it could handle, and results."""
        if self._takes_key:
            return self._function.each(chunk, chunk.key_list(), chunk.values)
        return self._function.each(chunk, chunk.values)

    def truths(self, chunk: Chunk) -> tuple[Chunk, Bools]:
        """Call the function for each record and tell for which it is true."""
        kept, found = self._function.each(*self.each(chunk), step=bool)
        return kept, np.array(found, np.bool_)
