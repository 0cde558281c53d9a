"""Operators at the edge to outside systems: what the front door of Connect compiles to.

Records come from, and go to, a process of their own that runs a connector's task.  It gives and
takes columns; the operators here hold the picklable address by which a worker reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from headrace.topology.operators.core import Operator, Sink, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ["Delivery", "Feed", "FeedSink", "Intake", "MessageSource", "Outlet", "Taken"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What an intake gives for one batch.

    The columns of ``records`` are ``topic`` (string), ``queue`` (int32, null where the key
    decides), ``key`` (binary, null for none), ``value`` (binary, null to delete), ``properties``
    (binary, as the wire has them) and ``timestamp`` (int64, ms since 1970).
    """

    records: pa.RecordBatch
    #: Where each partition has been read to behind them: its name, and what its connector says;
    #: None: the partition is gone.
    positions: Sequence[tuple[str, Any]]


class Intake(Protocol):
    """Where a worker asks for records of an outside system; pickled with the job."""

    def take(self, epoch: int, batch: int) -> Taken:
        """Give the records of a batch; asked again for the same one, the same records.

        A batch that follows says that the one before is committed; a new epoch, that everything
        behind the last committed batch comes again.
        """


class Outlet(Protocol):
    """Where a worker hands messages over to an outside system; pickled with the job."""

    def put(self, epoch: int, batch: int, messages: pa.RecordBatch) -> None:
        """Hand messages over, in the order of each queue.

        The columns are ``queue`` (string, ``topic@broker@number``), ``offset`` (int64), ``body``
        and ``properties`` (binary) and ``timestamp`` (int64, ms since 1970).
        """

    def flush(self, epoch: int, batch: int) -> None:
        """Make sure that all of the batch is there."""

    def refused(self, epoch: int, batch: int) -> pa.RecordBatch | None:
        """Give what the outside did not take, after the flush, in the columns of an intake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed(Operator):
    """Takes what comes from outside."""

    label: ClassVar[str] = "feed"
    changes_key: ClassVar[bool] = True

    #: None: whoever runs the batch feeds the records in.
    intake: Intake | None
    #: Generation of the task, by which of two positions the later one is known.
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSink(Sink):
    """Writes what comes in the columns of an intake, each record to the topic that it names."""

    label: ClassVar[str] = "feed_sink"

    #: The only topic that records name; empty where they may name any.
    topic: str = ""
    serializer: None = None  # type: ignore[assignment]

    @property
    def topics(self) -> tuple[str, ...]:
        """The one that is known before a record comes, if one is."""
        return (self.topic,) if self.topic else ()

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"writes {self.topic or 'the topics that records name'}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSource(Source):
    """Reads a share of the queues of some topics, as messages that nobody deserializes."""

    label: ClassVar[str] = "message_source"

    deserializer: None = None  # type: ignore[assignment]
    #: Which share of the queues, of how many.
    number: int = 0
    of: int = 1

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        shown = [f"reads {', '.join(self.shown_topics)}"]
        return shown if self.of == 1 else [*shown, f"share {self.number} of {self.of}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Operator):
    """Hands messages over to the outside, and passes on what was not taken there."""

    label: ClassVar[str] = "delivery"

    #: None: whoever runs the batch has taken the messages out.
    outlet: Outlet | None
    #: Generation of the task, by which of two positions the later one is known.
    generation: int = 0
