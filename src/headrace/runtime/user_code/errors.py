"""What becomes of records that fail: counted, and their messages sent to a dead-letter topic."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.protocol.properties import decode_properties, encode_properties
from headrace.runtime.commit.transactions import QueueMessages
from headrace.runtime.user_code.calls import without_bad
from headrace.runtime.user_code.failures import may_pass
from headrace.topology.errors import DEAD_LETTER_PREFIX
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping

    from headrace.protocol.transactions import QueueName
    from headrace.runtime.chunk import Chunk
    from headrace.runtime.user_code.calls import Locator
    from headrace.topology.operators.core import Operator

__all__ = ["Finder", "Original", "RecordErrors", "salvaged"]

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
        """Give the message that caused a record; None where there is none."""


class RecordErrors:
    """The failed records of one task, by the policies of their operators.

    Parameters
    ----------
    job
        Name of the job, for the dead letters.
    finder
        Finds the messages that records come from.
    queues
        Gives the writable queues of a topic.
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
        """Give what is to be staged, queue by queue."""
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
