"""A task of a connector as a job: its topology, its settings, and what begins its batches."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.client import Admin
from headrace.connect.data.edges import HostImpulse, HostIntake, HostOutlet
from headrace.connect.data.positions import positions_elsewhere, stamp_of, task_job
from headrace.connect.data.queues import SinkQueues
from headrace.connect.hosts.channel import TaskChannel
from headrace.connect.worker.launching import Figures
from headrace.errors import JobFailedError, TopicNotFoundError
from headrace.spark import StreamJob
from headrace.spark.formats import SparkReads, SparkWrites
from headrace.spark.session import get_session
from headrace.spark.ticks import Ticks
from headrace.topology import Topology
from headrace.topology.operators.outside import Delivery, Feed, FeedSink, MessageSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.client import Client
    from headrace.connect.data.orders import Start
    from headrace.connect.data.settings import EngineSettings
    from headrace.protocol.transactions import CommitRecord, Position
    from headrace.spark.turns import Turns
    from headrace.topology import Operator

__all__ = ["TaskJob"]

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
        order: Start,
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
        """Tell what the task has moved."""
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
        """Give the committed offsets; the job's own record has them: there is one task."""
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
        """Give the queues of topics, and make those that are missing."""
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
