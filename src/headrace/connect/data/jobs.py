"""A task of a connector as a job: its topology, its settings, and what begins its batches."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.client import Admin, Client, MessageQueue, PullConsumer
from headrace.connect.channel import EngineMessage, QueryEvent, StartQuery, TaskCopy
from headrace.connect.data.edges import HostImpulse, HostIntake, HostOutlet, place_of_queue
from headrace.connect.data.positions import (
    EngineSettings,
    positions_elsewhere,
    read_positions,
    stamp_of,
    task_job,
)
from headrace.connect.hosts.channel import TaskChannel
from headrace.connect.lifecycle import Figures, Moved
from headrace.errors import HeadraceError, JobFailedError, TopicNotFoundError
from headrace.protocol.transactions import CommitRecord, Position, Share
from headrace.runtime.job_plan import is_internal
from headrace.spark import StreamJob
from headrace.spark.formats import SparkReads, SparkWrites
from headrace.spark.session import get_session
from headrace.spark.ticks import Ticks, Turns
from headrace.topology import Operator, Topology
from headrace.topology.operators.core import Delivery, Feed, FeedSink, MessageSource
from headrace.watched import end_process, watched_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.connect.records import Queue


# What tasks have moved, told by the engine every now and then.

logger = logging.getLogger(__name__)

#: A task is looked at so soon after a commit, and so seldom without one, s: a lag grows by itself.
_EVERY, _SELDOM = 1.0, 5.0


class Measurable(Protocol):
    """What has figures: the job of a task."""

    @property
    def batch(self) -> int:
        """The last committed batch."""

    def figures(self) -> Figures:
        """Return what it has moved."""


class Measuring:
    """Measures what tasks have moved, and tells of it each time that it has changed.

    Parameters
    ----------
    jobs
        Gives the jobs that run.
    tell
        Takes what the supervisor is to hear.
    """

    def __init__(
        self,
        jobs: Callable[[], Mapping[TaskCopy, Measurable]],
        tell: Callable[[EngineMessage], None],
    ) -> None:
        self._jobs = jobs
        self._tell = tell
        self._looked: dict[TaskCopy, tuple[int, float]] = {}
        self._told: dict[TaskCopy, Figures] = {}

    def start(self) -> None:
        """Look and tell for as long as the process lives."""
        watched_thread(self._run, name="engine-figures", on_failure=end_process).start()

    def look(self, now: float) -> None:
        """Send what has changed since the last time."""
        jobs = self._jobs()
        for unit in self._looked.keys() - jobs.keys():
            del self._looked[unit]
            self._told.pop(unit, None)
        for unit, job in jobs.items():
            batch, looked = self._looked.get(unit, (-1, 0.0))
            if job.batch != batch or now - looked >= _SELDOM:
                self._looked[unit] = job.batch, now
                self._measure(unit, job)

    def _measure(self, unit: TaskCopy, job: Measurable) -> None:
        try:
            figures = job.figures()
        except HeadraceError as error:
            # It starts, it ends, or its broker is away: the next look tells.
            logger.debug("no figures of %s-%d: %s", unit.connector, unit.task, error)
            return
        if figures != self._told.get(unit):
            self._told[unit] = figures
            self._tell(QueryEvent(unit, Moved(figures)))

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY)
            try:
                self.look(time.monotonic())
            except Exception:
                logger.exception("the figures of tasks could not be told; they are again soon")


# The queues of a sink task: none is read before the task has opened it.

#: So often a task that waits for a topic looks for it.
_LOOK_SECONDS = 1.0


class SinkQueues:
    """What a sink task reads, as topics and queues come.

    Parameters
    ----------
    order
        The task, with its topics or the pattern of their names.
    client
        Connection to the cluster.
    patience
        How long the task may take to open queues.
    waits
        Hears what the task waits for; an empty text: nothing any more.
    """

    def __init__(
        self, order: StartQuery, client: Client, patience: timedelta, waits: Callable[[str], None]
    ) -> None:
        self._kept_as = order.kept_as or order.unit.connector
        self._job = task_job(self._kept_as, order.unit.task)
        self._terms = order.terms
        self._address = order.address
        self._client = client
        self._patience = patience
        self._waits = waits
        self._share = Share(number=order.unit.task, of=order.tasks)
        #: Every queue that the task has opened, by its name.
        self._opened: dict[str, Queue] = {}
        self._begins: dict[str, int] = {}
        self._missing = self._not_there()
        self._said = ""
        self._looked = time.monotonic()

    @property
    def topic(self) -> tuple[str, ...] | re.Pattern[str]:
        """Name what is read: by a pattern, where something of it has yet to come."""
        if self._terms.pattern:
            return re.compile(self._terms.pattern)
        if self._missing:
            return re.compile("|".join(map(re.escape, self._terms.topics)))
        return tuple(self._terms.topics)

    def open(self) -> dict[str | int, int]:
        """Return the task the queues that there are; give where it goes on, by queue.

        It takes no batch before it is told of the epoch that begins.
        That is where the sink itself says, or the last commit; in new queues, where its config
        says.
        """
        found = [queue for topic in self._topics() for queue in self._client.queues(topic)]
        names = [queue.name for queue in found if self._share.owns(queue.name)]
        offsets = self._open(names, {}, fenced=True)
        fresh = [name for name in names if name not in offsets]
        begins = (offsets, self._first_offsets(fresh))
        return {name: offset for part in begins for name, offset in part.items()}

    def begins(self) -> Mapping[str, int]:
        """Return where the queues are begun that came while the task ran."""
        return self._begins

    def learn(self, queues: Collection[str], offsets: Mapping[str, int]) -> bool:
        """Have the task open queues that are new; tell whether there were some.

        Caller: the driver, between two batches.

        Parameters
        ----------
        queues
            All queues that there are.
        offsets
            How far each has been handed over.
        """
        new = [name for name in queues if name not in self._opened]
        if not new:
            self._look()
            return False
        found = self._open([*self._opened, *new], offsets)
        self._begins |= {name: found[name] for name in new if name in found}
        self._missing = self._not_there()
        self._say_news()
        return True

    def _open(
        self, names: Collection[str], offsets: Mapping[str, int], *, fenced: bool = False
    ) -> dict[str, int]:
        """Open queues in the task; give where it goes on."""
        places = {name: place_of_queue(name) for name in names}
        known = {**read_positions(self._client, self._kept_as), **offsets}
        committed = {places[name]: known[name] for name in places if name in known}
        with TaskChannel(self._address, self._patience) as channel:
            kept = channel.open(places.values(), committed, fenced=fenced)
        self._opened = places
        found = {**committed, **(kept or {})}
        return {name: found[place] for name, place in places.items() if place in found}

    def _first_offsets(self, names: Collection[str]) -> dict[str, int]:
        """Return where queues begin that were never read.

        None where that is their first message.
        """
        begin = self._terms.begin
        if begin == "first" or not names:
            return {}
        queues = [MessageQueue.parse(name) for name in names]
        consumer = PullConsumer(self._client, self._job)
        if begin == "latest":
            found = consumer.end_offsets(queues)
        else:
            found = consumer.offsets_for_time(queues, datetime.fromtimestamp(begin / 1000, UTC))
        return {queue.name: offset for queue, offset in found.items()}

    def _look(self) -> None:
        """Look whether a topic is there of which other tasks have all the queues."""
        if self._said and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._missing = self._not_there()
            self._say_news()

    def _topics(self) -> list[str]:
        terms = self._terms
        if not terms.pattern:
            return [topic for topic in terms.topics if topic not in self._missing]
        whole = re.compile(terms.pattern)
        known = Admin(self._client).topics()
        return [topic for topic in known if whole.fullmatch(topic) and not is_internal(topic)]

    def _not_there(self) -> list[str]:
        return [topic for topic in self._terms.topics if not self._is_there(topic)]

    def _is_there(self, topic: str) -> bool:
        try:
            self._client.queues(topic)
        except TopicNotFoundError:
            if is_internal(topic):
                # No pattern finds it when it comes.
                raise
            return False
        return True

    def say(self) -> None:
        """Pass on what the task waits for, also where that is nothing."""
        self._said = self._lacks()
        self._waits(self._said)

    def _say_news(self) -> None:
        if self._lacks() != self._said:
            self.say()

    def _lacks(self) -> str:
        if self._terms.pattern and not self._opened and not self._topics():
            return f"a topic whose name matches {self._terms.pattern}: there is none yet"
        return _missing(self._missing)


def _missing(topics: list[str]) -> str:
    """Return which topics are missing, as what the task waits for.

    >>> _missing(["orders"])
    'topic orders, which does not exist yet'
    >>> _missing(["orders", "bills"])
    'topics orders and bills, which do not exist yet'
    """
    if not topics:
        return ""
    if len(topics) == 1:
        return f"topic {topics[0]}, which does not exist yet"
    return f"topics {', '.join(topics[:-1])} and {topics[-1]}, which do not exist yet"


#: One that starts has so long until it can be stopped.
_STARTING = timedelta(seconds=10)
#: The operator that a source's records come by.
_POLL = "poll"
#: A batch that is under way has so long to be committed when its job is stopped, s.
_DRAINING = 1.5
#: So long a batch may take; then it runs beside those of others, s.
_TURN_LASTS = {"source": 30.0, "sink": 2.0}


class TaskJob:
    """The job of one copy of a task.

    Parameters
    ----------
    order
        What to run.
    client
        Connection to the cluster; shared.
    settings
        Where it runs.
    turns
        Shared by all jobs of the engine.
    waits
        Hears what the task waits for; an empty text: nothing any more.
    """

    def __init__(
        self,
        order: StartQuery,
        client: Client,
        settings: EngineSettings,
        turns: Turns,
        waits: Callable[[str], None],
    ) -> None:
        self._order = order
        self._client = client
        self._patience = settings.batch_timeout
        self._over = threading.Event()
        self._at_rest = threading.Event()
        self._at_rest.set()
        self._hold = threading.Event()
        #: Tells what it waits for, once it runs.
        self._say: Callable[[], None]
        self._impulse: HostImpulse | None = None
        #: Partitions that the records of the connector's other tasks have.
        self._elsewhere: set[str] = set()
        if order.paused:
            self._hold.set()
        self._kept_as = order.kept_as or order.unit.connector
        self.name = task_job(self._kept_as, order.unit.task)
        with TaskChannel(order.address, self._patience) as channel:
            told = channel.in_engine()
        if order.role == "source":
            self._say = partial(waits, "")
            ticks, operators = self._source(told, settings)
        else:
            queues = SinkQueues(order, client, self._patience, waits)
            self._say = queues.say
            ticks, operators = self._sink(told, queues)
        taker = turns.taker(_TURN_LASTS[order.role])
        self._ticks = replace(ticks, hold=self._hold, provide=self._provide, turns=taker)
        topology = Topology(self.name, operators)
        columns = order.terms.columns
        self._job = StreamJob(topology, settings.job_settings(columns=columns), ticks=self._ticks)

    @property
    def batch(self) -> int:
        """The last committed batch."""
        return self._job.batch

    def figures(self) -> Figures:
        """Return what the task has moved."""
        now = self._job.statistics()
        return Figures(
            records=now.records_in,
            bytes=now.outside_bytes,
            written=now.records_out,
            commits=now.batch,
            rollbacks=now.restarts,
            lag=None if self._order.role == "source" else now.lag,
        )

    def hold(self, *, held: bool) -> None:
        """Begin no more batches, or go on."""
        (self._hold.set if held else self._hold.clear)()

    def start(self) -> None:
        """Begin.

        Raises
        ------
        HeadraceError
            It cannot, or it was stopped meanwhile.
        """
        self._at_rest.clear()
        try:
            if not self._over.is_set():
                self._job.start()
            if self._over.is_set():
                raise JobFailedError("it was stopped while it started")
            self._say()
        except BaseException:
            self._job.stop()
            raise
        finally:
            self._at_rest.set()

    def await_end(self) -> None:
        """Wait for the job's end; raise what ended it, where nobody has stopped it."""
        self._job.await_termination()

    def stop(self) -> None:
        """End the query, behind the batch that is under way; one that takes long is dropped.

        One that is about to start ends as soon as it has.
        """
        self._over.set()
        self._hold.set()
        if self._at_rest.wait(_STARTING.total_seconds()):
            self._ticks.rests.wait(_DRAINING)
            self._job.stop()

    def _source(
        self, told: Mapping[str, Any] | None, settings: EngineSettings
    ) -> tuple[Ticks, tuple[Operator, ...]]:
        order, stamp = self._order, stamp_of(self._order.unit.generation)
        sink = FeedSink(name="topics", parents=(_POLL,))
        if told is None:
            feed = Feed(name=_POLL, parents=(), intake=HostIntake(order.address), generation=stamp)
            self._impulse = HostImpulse(order.address, lambda: self.batch)
            ticks = Ticks(self._impulse, opened=self._begin_host, elsewhere=lambda: self._elsewhere)
            return ticks, (feed, sink)
        session = partial(get_session, settings.job_settings())
        reads = SparkReads(told, _POLL, stamp, session, self._positions)
        feed = Feed(name=_POLL, parents=(), intake=None, generation=stamp)
        return Ticks(reads, opened=self._begin_host, work=reads), (feed, sink)

    def _begin_host(self, record: CommitRecord) -> None:
        """Have the host's task go on from the open record: nobody else commits any more.

        Partitions that came from other tasks are in the records of those, from before this
        generation, until this task has moved them.
        """
        own, unit = record.positions, self._order.unit
        others = positions_elsewhere(self._client, self._kept_as, unit.task)
        self._elsewhere = set(others)
        newer = [
            (json.loads(name), one.offset)
            for name, one in others.items()
            if name not in own or own[name].generation < one.generation
        ]
        recorded = [(json.loads(name), at) for name, at in _offsets(own).items()]
        with TaskChannel(self._order.address, self._patience) as channel:
            channel.begin(record.batch, recorded, newer)

    def _positions(self) -> dict[str, Any]:
        """Return the committed offsets; the job's own record has them: there is one task."""
        return _offsets(self._job.positions)

    def _sink(
        self, told: Mapping[str, Any] | None, queues: SinkQueues
    ) -> tuple[Ticks, tuple[Operator, ...]]:
        operators = self._delivery(queues, in_engine=told is not None)
        if told is None:
            return Ticks(opening=queues, opened=self._fence_host), operators
        # Nothing is brought to the host.
        return Ticks(opening=queues, work=SparkWrites(told, self._order.unit.task)), operators

    def _fence_host(self, record: CommitRecord) -> None:
        """Have the host's task refuse what drivers before this one still bring."""
        with TaskChannel(self._order.address, self._patience) as channel:
            channel.fence(record.epoch)

    def _delivery(self, queues: SinkQueues, *, in_engine: bool) -> tuple[Operator, ...]:
        order = self._order
        source = MessageSource(
            name="messages",
            parents=(),
            topic=queues.topic,
            number=order.unit.task,
            of=order.tasks,
            start=queues.open(),
            start_once=False,
        )
        outlet = Delivery(
            name="put",
            parents=("messages",),
            outlet=None if in_engine else HostOutlet(order.address, self._patience),
            generation=stamp_of(order.unit.generation),
        )
        letters = order.terms.letters
        if not letters:
            return source, outlet
        self._provide([letters])
        return source, outlet, FeedSink(name="letters", parents=("put",), topic=letters)

    def _provide(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """Return the queues of topics, and make those that are missing."""
        found: dict[str, list[str]] = {}
        for topic in topics:
            try:
                queues = self._client.queues(topic, for_="write")
            except TopicNotFoundError:
                self._create(topic)
                queues = self._client.queues(topic, for_="write")
            found[topic] = [queue.name for queue in sorted(queues)]
        return found

    def _create(self, topic: str) -> None:
        """Make a topic: with as many queues in all as the task says, else as many per broker."""
        wanted = None if self._impulse is None else self._impulse.queues.get(topic)
        queues = self._order.terms.queues
        if wanted is not None:
            queues = -(-wanted // max(1, len(self._client.brokers())))
        Admin(self._client).create_topic(topic, queues)


def _offsets(positions: Mapping[str, Position]) -> dict[str, Any]:
    return {name: one.offset for name, one in positions.items() if one.offset is not None}
