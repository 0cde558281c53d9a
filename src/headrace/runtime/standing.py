"""Where a job stands, operator by operator: told by its commit record, in any process."""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import HeadraceError, TopicNotFoundError
from headrace.protocol.transactions import CommitRecord, OperatorNote, QueueName
from headrace.runtime.event_time.watermarks import clock_of
from headrace.topology.operators.core import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.runtime.state.home import StateHome
    from headrace.topology import Topology


#: Counters of each operator: records in and out, state messages that restores read, their time (us).
IN, OUT, RESTORED, RESTORE_TIME = "in", "out", "restored", "restore_time"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: So often the time of a message is looked up at most, s.
_LOOK_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a job is behind in one queue."""

    #: Messages that are not committed.
    messages: int
    #: Age of the oldest of them; None where nobody has looked.
    behind: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """One operator of a job at one moment.  Numbers count since the job's first batch."""

    #: Records that reached it and that it gave.  What was combined before a shuffle counts once
    #: per key and task.
    records_in: int
    records_out: int
    #: Records that came too late, those without a key where it goes by keys, and those that its
    #: ``on_error`` took out.
    late: int
    dropped: int
    #: How far event time has come for it, or in the slowest queue of a source; None where it
    #: plays no part, or none has come yet.
    watermark: datetime | None
    #: Messages of the sources that feed it that are not committed, and the age of the oldest;
    #: None where nobody has looked.
    lag: int | None
    behind: timedelta | None
    #: Entries of its state store, and bytes of their keys and values.
    state_keys: int
    state_bytes: int
    #: State messages that restores of its store have read, and how long they took, over all tasks.
    restored: int
    restore_time: timedelta


def operator_notes(topology: Topology) -> dict[str, OperatorNote]:
    """Note what a commit record says of a topology.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> builder.source("lines", serdes.string).sink("copies", serdes.string)
    <end of 'sink-copies'>
    >>> operator_notes(builder.build())["sink-copies"].parents
    ['source-lines']
    """
    found = {}
    for operator in topology.operators:
        topics: list[str] = []
        pattern = ""
        if isinstance(operator, Source):
            topics = list(operator.topics)
            pattern = operator.topic.pattern if isinstance(operator.topic, re.Pattern) else ""
        found[operator.name] = OperatorNote(
            label=operator.label, parents=list(operator.parents), topics=topics, pattern=pattern
        )
    return found


def operator_statistics(
    record: CommitRecord, lag: Mapping[QueueName, QueueLag] | None = None
) -> dict[str, OperatorStatistics]:
    """Return what each operator of a job did, by its name.

    Parameters
    ----------
    record
        The job's newest commit record.
    lag
        How far it is behind in each queue, where somebody has looked.
    """
    times = _watermarks(record)
    entries: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for state in record.states:
        entries[state.store] += state.count
        sizes[state.store] += state.size
    feeds = _feeds(record.operators)

    def counted(name: str, *kinds: str) -> int:
        return sum(record.counters.get(f"{kind}{name}", 0) for kind in kinds)

    found = {}
    for name in record.operators:
        own = None if lag is None else [lag[q] for q in lag if feeds[name].reads(q)]
        found[name] = OperatorStatistics(
            records_in=counted(name, f"{IN}:"),
            records_out=counted(name, f"{OUT}:"),
            late=counted(name, "late."),
            dropped=counted(name, "skipped:", "dead_lettered:", "null_keys:"),
            watermark=_moment(times.get(name)),
            lag=None if own is None else sum(queue.messages for queue in own),
            behind=None if own is None else longest(own),
            state_keys=entries[name],
            state_bytes=sizes[name],
            restored=counted(name, f"{RESTORED}:"),
            restore_time=timedelta(microseconds=counted(name, f"{RESTORE_TIME}:")),
        )
    return found


def longest(queues: Iterable[QueueLag]) -> timedelta | None:
    """Return the age of the oldest message of some queues; None where one is unknown."""
    ages = [queue.behind for queue in queues]
    known = [age for age in ages if age is not None]
    return max(known, default=timedelta(0)) if len(known) == len(ages) else None


def lag_of(home: StateHome, record: CommitRecord) -> dict[QueueName, QueueLag] | None:
    """Return what a commit leaves unread of each queue, or None if a topic that it read is gone."""
    topics = {MessageQueue.parse(queue).topic for queue in record.offsets}
    topics.update(topic for note in record.operators.values() for topic in note.topics)
    with suppress(TopicNotFoundError):
        latest = home.transactions.plan(sorted(topics), {}, 0, 0).latest
        return LagReader(home.consumer).read(record, latest)
    return None


class LagReader:
    """Looks how far a job is behind; the time of a message is looked up once.

    Parameters
    ----------
    consumer
        Reads the cluster.
    """

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._stored: dict[QueueName, tuple[int, int]] = {}
        self._looked = -_LOOK_INTERVAL

    def read(
        self, record: CommitRecord, latest: Mapping[QueueName, int]
    ) -> dict[QueueName, QueueLag]:
        """Return the lag of each queue, from the ends of the queues.

        Between two looks at the messages, a second apart, an age is that of the message that was
        the oldest then.
        """
        looks = time.monotonic() - self._looked >= _LOOK_INTERVAL
        if looks:
            self._looked = time.monotonic()
        return {
            queue: self._of(queue, record.offsets.get(queue, 0), end, looks=looks)
            for queue, end in latest.items()
        }

    def _of(self, queue: QueueName, offset: int, end: int, *, looks: bool) -> QueueLag:
        if end <= offset:
            return QueueLag(0, timedelta(0))
        known = self._stored.get(queue)
        if looks and (known is None or known[0] != offset):
            # The broker may be away, or the message gone: then its age is not known.
            with suppress(HeadraceError):
                unread = self._consumer.pull(MessageQueue.parse(queue), offset, max_messages=1)
                for message in unread.messages():
                    known = self._stored[queue] = (offset, message.stored)
        if known is None:
            return QueueLag(end - offset)
        return QueueLag(end - offset, timedelta(seconds=max(0.0, time.time() - known[1] / 1000)))


@dataclass(frozen=True, slots=True)
class _Feeds:
    """What the sources read that feed an operator."""

    topics: frozenset[str]
    patterns: frozenset[str]

    def reads(self, queue: QueueName) -> bool:
        """Return whether they read a queue."""
        topic = MessageQueue.parse(queue).topic
        return topic in self.topics or any(re.fullmatch(p, topic) for p in self.patterns)


def _feeds(operators: Mapping[str, OperatorNote]) -> dict[str, _Feeds]:
    found: dict[str, _Feeds] = {}
    for name, note in operators.items():
        above = [found[parent] for parent in note.parents if parent in found]
        found[name] = _Feeds(
            frozenset(note.topics).union(*(one.topics for one in above)),
            frozenset({note.pattern} - {""}).union(*(one.patterns for one in above)),
        )
    return found


def _watermarks(record: CommitRecord) -> dict[str, int]:
    times = dict(record.progress)
    for origin, time_ in record.watermarks.items():
        source = clock_of(origin)
        times[source] = min(time_, times.get(source, time_))
    return times


def _moment(milliseconds: int | None) -> datetime | None:
    if milliseconds is None:
        return None
    with suppress(OverflowError):
        return _EPOCH + timedelta(milliseconds=milliseconds)
    return None
