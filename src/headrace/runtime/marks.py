"""Marks: the order in which records are handled, and the place of the message that caused each.

A mark is one number, as all records carry one and are sorted by it.  That of a message is made of
its position in its broker's commit log and, below that, of the broker: positions alone are not
enough, since each broker counts its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import JobFailedError

if TYPE_CHECKING:
    from headrace.runtime.chunk import Int64s


#: Bits that number a broker; the other 53 hold positions of up to nine petabytes.
_BROKER_BITS = 10
#: Marks of tuples that no message caused: below those of all messages, by partition and order.
_FIRST_OF_SPOUTS = -(1 << 61)
_PARTITION_BITS = 40


class LogPlace(NamedTuple):
    """Where a message lies."""

    broker: str
    #: In the broker's commit log.
    position: int


class Marks:
    """The marks of a batch.

    They are made by one task and read by others, so all of them number the brokers alike.

    Parameters
    ----------
    brokers
        Names of all brokers that hold queues of the job's sources, in the order of the batch's
        :class:`~headrace.runtime.control.Control`.

    Raises
    ------
    JobFailedError
        There are more brokers than marks can tell apart.

    Examples
    --------
    >>> import numpy as np
    >>> marks = Marks(["broker-a", "broker-b"])
    >>> one, other = (int(marks.of(name, np.array([77]))[0]) for name in ("broker-a", "broker-b"))
    >>> one < other < int(marks.of("broker-a", np.array([78]))[0])
    True
    >>> marks.place(other)
    LogPlace(broker='broker-b', position=77)
    """

    def __init__(self, brokers: Sequence[str]) -> None:
        if len(brokers) > 1 << _BROKER_BITS:
            raise JobFailedError(
                f"the job reads topics of {len(brokers)} brokers, and {1 << _BROKER_BITS} is the"
                " most that one can",
                hint="read the topics of some brokers by a job of their own",
            )
        self._brokers = brokers
        self._numbers = {broker: number for number, broker in enumerate(brokers)}

    def of(self, broker: str, positions: Int64s) -> Int64s:
        """Return the marks of messages of a broker, by their positions in its commit log."""
        return (positions << _BROKER_BITS) | self._numbers[broker]

    def place(self, mark: int) -> LogPlace | None:
        """Return the place of the message with a mark; None where no message caused it."""
        number = mark & ((1 << _BROKER_BITS) - 1)
        if mark < 0 or number >= len(self._brokers):
            return None
        return LogPlace(self._brokers[number], mark >> _BROKER_BITS)


def spout_mark(partition: int) -> int:
    """Return the first mark of tuples that no message caused.

    >>> spout_mark(0) < spout_mark(1) < 0
    True
    """
    return _FIRST_OF_SPOUTS + (partition << _PARTITION_BITS)
