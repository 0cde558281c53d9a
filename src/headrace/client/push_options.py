"""Options of a push consumer, and what it tells about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import SettingsError

if TYPE_CHECKING:
    from headrace.client._sharing import Start
    from headrace.protocol.routes import MessageQueue


_MIB = 1024 * 1024
#: What RocketMQ takes for "no limit" in ordered groups.
_WITHOUT_END = 2**31 - 1
_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Options of a push consumer.

    Examples
    --------
    >>> PushOptions(orderly=True).times
    2147483647
    """

    #: Where to begin in a queue for which the group has no offset.
    start: Start = "last"
    #: Process each queue's messages one after the other, by one member at a time.
    orderly: bool = False
    #: Every member reads everything, and keeps its offsets in a file of its own.
    broadcasting: bool = False
    #: Most messages that are worked on at once, or most queues of an ordered consumer.
    concurrency: int = 20
    #: How long the listener may take for a message before it counts as failed.
    consume_timeout: timedelta = timedelta(minutes=15)
    #: Tries after the first before a message is a dead letter; None: 16, ordered: no limit.
    max_reconsume_times: int | None = None
    #: How long a failed message waits; None: the broker's ladder, 10 s to 2 h.
    retry_delay: timedelta | None = None
    #: Ordered: how long a queue waits before its failed message is tried again.
    suspend: timedelta = timedelta(seconds=1)
    #: Most messages that wait or are worked on; a pull's worth for each queue may come on top.
    max_messages: int = 10_000
    #: Most bytes of such messages, likewise.
    max_bytes: int = 64 * _MIB
    #: How far a queue may be read beyond its first message that is not done.
    max_span: int = 2_000
    #: Most messages that one pull asks for.
    pull_messages: int = 256
    #: Most bytes that one pull asks for.
    pull_bytes: int = _MIB
    #: How long the broker holds back a pull that finds nothing.
    wait: timedelta = timedelta(seconds=15)
    #: Read only what is committed of what jobs write, and each message once.
    committed: bool = False
    #: How long ``close`` waits for the messages that are worked on.
    stop_timeout: timedelta = timedelta(seconds=30)
    #: File of a broadcasting member's offsets; None: where RocketMQ's Java clients keep theirs.
    offsets_file: Path | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_messages", "max_bytes", "max_span", "pull_messages"):
            if getattr(self, name) < 1:
                raise SettingsError(f"push option {name} is {getattr(self, name)}, not positive")
        for name in ("consume_timeout", "suspend", "stop_timeout"):
            if getattr(self, name) <= _ZERO:
                raise SettingsError(
                    f"push option {name} is {getattr(self, name)}, not a positive time",
                    hint="give a positive timedelta",
                )
        if self.times < 0:
            raise SettingsError(f"push option max_reconsume_times is {self.times}, below 0")

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
