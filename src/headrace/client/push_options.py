"""Options of a push consumer, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace._setting import SHORTEST, setting
from headrace.client._sharing import MemberOptions

if TYPE_CHECKING:
    from headrace.protocol.routes import MessageQueue


_MIB = 1024 * 1024
#: What RocketMQ takes for "no limit" in ordered groups.
_WITHOUT_END = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(MemberOptions):
    """Options of a push consumer.

    Examples
    --------
    >>> PushOptions(orderly=True).times
    2147483647
    """

    orderly: bool = setting(
        default=False,
        doc="Process each queue's messages one after the other, by one member at a time.",
    )
    broadcasting: bool = setting(
        default=False,
        doc="Every member reads everything, and keeps its offsets in a file of its own.",
    )
    concurrency: int = setting(
        20, doc="Most messages worked on at once, or most queues of an ordered consumer.", minimum=1
    )
    consume_timeout: timedelta = setting(
        timedelta(minutes=15),
        doc="How long the listener may take for a message before it counts as failed.",
        minimum=SHORTEST,
    )
    max_reconsume_times: int | None = setting(
        None,
        doc="Tries after the first before a message is a dead letter; None: 16, ordered: no end.",
    )
    retry_delay: timedelta | None = setting(
        None, doc="How long a failed message waits; None: the broker's ladder, 10 s to 2 h."
    )
    suspend: timedelta = setting(
        timedelta(seconds=1),
        doc="Ordered: how long a queue waits before its failed message is tried again.",
        minimum=SHORTEST,
    )
    max_messages: int = setting(
        10_000,
        doc="Most messages that wait or are worked on; a pull's worth for each queue may come too.",
        minimum=1,
    )
    max_bytes: int = setting(
        64 * _MIB, doc="Most bytes of such messages, likewise.", unit="bytes", minimum=1
    )
    max_span: int = setting(
        2_000, doc="How far a queue may be read beyond its first message not done.", minimum=1
    )
    pull_messages: int = setting(256, doc="Most messages that one pull asks for.", minimum=1)
    pull_bytes: int = setting(_MIB, doc="Most bytes that one pull asks for.", unit="bytes")
    stop_timeout: timedelta = setting(
        timedelta(seconds=30),
        doc="How long `close` waits for the messages that are worked on.",
        minimum=SHORTEST,
    )
    offsets_file: Path | None = setting(
        None, doc="File of a broadcasting member's offsets; None: where Java clients keep theirs."
    )

    @property
    def times(self) -> int:
        """Tries after the first, as a number."""
        if self.max_reconsume_times is not None:
            return self.max_reconsume_times
        return _WITHOUT_END if self.orderly else 16


@dataclass(frozen=True, slots=True)
class PushStatistics:
    """Counts of what a push consumer does now and has done so far."""

    #: Queues of this member, with the offset before which all messages are done.
    positions: dict[MessageQueue, int]
    #: Messages that wait for the listener or are worked on.
    buffered: int
    #: Bytes of these messages.
    buffered_bytes: int
    #: Messages that the listener works on now.
    running: int
    #: How long it has been working on the oldest of them.
    longest_running: timedelta
    #: Messages that were processed.
    processed: int
    #: Calls of the listener that raised.
    failed: int
    #: Calls of the listener that took too long.
    timed_out: int
    #: Messages sent back, for another try or as dead letters.
    sent_back: int
    #: Messages that failed in a broadcasting group, which does not try again.
    dropped: int
    #: Messages left out because only the hash of their tag matched.
    filtered: int
    #: Offsets committed.
    commits: int
    #: How often the assignment has changed.
    rebalances: int
