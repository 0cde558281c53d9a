"""The users' functions: called for whole chunks, with errors that name record and line."""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import threading
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    MutableMapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, JobFailedError, SerializationError, UserCodeError
from headrace.protocol.properties import decode_properties, encode_properties
from headrace.runtime.commit.transactions import QueueMessages
from headrace.topology.errors import DEAD_LETTER_PREFIX
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Bools, Chunk, Int64s
    from headrace.topology.operators.core import Operator, RecordFunction


# Errors on their way from a task to the driver.


def describe_failure(error: HeadraceError) -> bytes:
    """Encode an error; only our own processes of one job exchange these."""
    return pickle.dumps(error.with_traceback(None))


def may_pass(error: Exception) -> bool:
    """Return whether another try may succeed: then no record is to blame, whatever its policy.

    >>> may_pass(MemoryError()), may_pass(ValueError())
    (True, False)
    """
    if isinstance(error, HeadraceError):
        return error.retriable
    return isinstance(error, MemoryError)


def raise_failure(payload: bytes) -> None:
    """Raise the error that a task met.

    Raises
    ------
    HeadraceError
        The task's error, with its own type and fields.
    """
    error = pickle.loads(payload)  # noqa: S301 - made by describe_failure
    raise error if isinstance(error, HeadraceError) else JobFailedError(str(error))


# Errors of serdes, with the operator that met them.


@contextmanager
def writing(operator: Operator, what: str) -> Iterator[None]:
    """Name the operator in errors when a value or key cannot be written.

    Raises
    ------
    SerializationError
        In place of whatever a serde raises inside the context, unless it may pass by itself.
    """
    try:
        yield
    except Exception as error:
        if may_pass(error):
            raise
        reason = error.message if isinstance(error, HeadraceError) else error
        advice = error.hint if isinstance(error, HeadraceError) and error.hint else None
        raise SerializationError(
            f"operator '{operator.name}' cannot write {what}: {type(error).__name__}: {reason}",
            hint=f"the operator was made at {operator.origin}; "
            + (advice or "give it a serde that fits the values that reach it"),
        ) from error


# Awaiting many calls of a coroutine function at once, with the results in order.


def call_all(
    function: Callable[..., Awaitable[Any]],
    calls: Sequence[tuple[Any, ...]],
    max_in_flight: int,
    *,
    stops: bool,
) -> tuple[list[Any], dict[int, Exception]]:
    """Await the function for each tuple of arguments; return results in order, and failures.

    All calls of a process run on one event loop, so that what the function keeps open, a
    session for example, serves later batches too.

    Parameters
    ----------
    function
        Returns what is awaited.
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


# Calling the user's functions: fast on good records, precise about the bad one.


class _Skipped:
    def __repr__(self) -> str:
        return "SKIPPED"


#: What :meth:`UserFunction.call` returns for a record that the operator's policy took out.
SKIPPED = _Skipped()


class Locator(Protocol):
    """Locator of the record with a mark; it also takes out the records that fail."""

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
        """Call the function for each record; return the records that it could handle, and results.

        Parameters
        ----------
        chunk
            The records that the columns are of.
        columns
            The function's arguments.
        step
            Called in place of the function: a part of its work that is done later, such as
            walking through what a generator function yields.
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
        """Call the function for each item and return the results; a failure stops the job.

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
        """Call the function once; return :data:`SKIPPED` for a record that the policy takes out."""
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
        """Call the function for each record; return those that it could handle, and results."""
        if self._takes_key:
            return self._function.each(chunk, chunk.key_list(), chunk.values)
        return self._function.each(chunk, chunk.values)

    def truths(self, chunk: Chunk) -> tuple[Chunk, Bools]:
        """Call the function for each record; return those that it could handle, and which hold."""
        kept, found = self._function.each(*self.each(chunk), step=bool)
        return kept, np.array(found, np.bool_)


# What becomes of records that fail: counted, and their messages sent to a dead-letter topic.

_LONGEST_TEXT = 500
_PREFIX = "HEADRACE_DEAD_"


@dataclass(frozen=True, slots=True)
class Original:
    """The message that a record comes from, as its topic holds it."""

    #: Empty for what no message caused.
    topic: str
    queue: int
    offset: int
    body: bytes
    #: As the wire has them.
    properties: bytes
    #: ms since 1970.
    born: int
    broker: str = ""

    def __str__(self) -> str:
        place = f"topic '{self.topic}', queue {self.queue}, offset {self.offset}"
        return f"{place} (broker {self.broker})" if self.broker else place


class Finder(Protocol):
    """Finds messages by their marks."""

    def find(self, mark: int) -> Original | None:
        """Return the message that caused a record; None where there is none."""


class RecordErrors:
    """The failed records of one task, by the policies of their operators.

    Parameters
    ----------
    job
        Name of the job, for the dead letters.
    finder
        Finds the messages that records come from.
    queues
        Returns the writable queues of a topic.
    counters
        Where records are counted: in all, and for each operator.
    clock
        Wall clock of the batch, ms: the time of a dead letter that no message caused.
    """

    def __init__(
        self,
        job: str,
        finder: Finder,
        queues: Callable[[str], list[QueueName]],
        counters: MutableMapping[str, int],
        clock: int,
    ) -> None:
        self._job = job
        self._finder = finder
        self._queues = queues
        self._counters = counters
        self._clock = clock
        self._dead: dict[QueueName, list[tuple[bytes, bytes, int]]] = defaultdict(list)
        self._sent: set[tuple[str, int]] = set()

    def locate(self, mark: int) -> str:
        """Describe the place of the message that a record comes from."""
        found = None
        with suppress(HeadraceError):
            found = self._finder.find(mark)
        return "a place that is not known any more" if found is None else str(found)

    def divert(self, operator: Operator, mark: int, error: Exception, line: str | None) -> None:
        """Count a record that failed and send its message where the operator's policy says.

        A message goes to an operator's dead letters once, however many records it gave.
        """
        self._count(operator)
        if operator.on_error == "skip" or (operator.name, mark) in self._sent:
            return
        self._sent.add((operator.name, mark))
        self._send(operator, self._finder.find(mark), error, line)

    def divert_message(self, operator: Operator, original: Original, error: Exception) -> None:
        """Do the same with a message of which no record could be made."""
        self._count(operator)
        if operator.on_error != "skip":
            self._send(operator, original, error, user_line(error))

    def dead_letters(self) -> Iterator[QueueMessages]:
        """Yield what is to be staged, queue by queue."""
        for queue, letters in self._dead.items():
            bodies, properties, times = zip(*letters, strict=True)
            yield QueueMessages(
                queue,
                pa.array(bodies, pa.binary()),
                pa.array(properties, pa.binary()),
                np.array(times, np.int64),
            )
        self._dead.clear()

    def _count(self, operator: Operator) -> None:
        what = "skipped" if operator.on_error == "skip" else "dead_lettered"
        self._counters[what] += 1
        self._counters[f"{what}:{operator.name}"] += 1

    def _send(
        self, operator: Operator, original: Original | None, error: Exception, line: str | None
    ) -> None:
        queues = self._queues(operator.on_error.removeprefix(DEAD_LETTER_PREFIX))
        found = original or Original("", 0, -1, b"", b"", self._clock)
        told = {
            "JOB": self._job,
            "OPERATOR": operator.name,
            **(_place(original) if original is not None else {}),
            "EXCEPTION": type(error).__name__,
            "REASON": _property_text(f"{type(error).__name__}: {error}"),
            **({} if line is None else {"LINE": _property_text(line)}),
        }
        kept = {
            name: value
            for name, value in decode_properties(found.properties).items()
            if not name.startswith(_PREFIX)
        }
        properties = encode_properties(kept | {_PREFIX + name: told[name] for name in told})
        queue = queues[found.queue % len(queues)]
        self._dead[queue].append((found.body, properties, found.born))


def salvaged(
    operator: Operator,
    chunk: Chunk,
    write: Callable[[Chunk], object],
    locator: Locator,
) -> Chunk:
    """Take out the records that cannot be written, by trying each alone."""
    bad = []
    for index in range(len(chunk)):
        try:
            write(chunk.take(np.array([index], np.intp)))
        except Exception as error:
            if may_pass(error):
                raise
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            locator.divert(operator, int(chunk.marks[index]), cause, user_line(cause))
            bad.append(index)
    return without_bad(chunk, bad)


def _place(original: Original) -> dict[str, str]:
    if not original.topic:
        return {}
    return {
        "TOPIC": original.topic,
        "QUEUE": str(original.queue),
        "OFFSET": str(original.offset),
    }


def _property_text(text: str) -> str:
    plain = text.replace("\x01", " ").replace("\x02", " ").encode(errors="replace").decode()
    return plain[:_LONGEST_TEXT]
