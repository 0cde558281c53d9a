"""A task of a connector as a job: its topology, its settings, and what begins its batches."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from headrace.client import Admin
from headrace.connect.data.edges import HostImpulse, HostIntake, HostOutlet
from headrace.connect.data.positions import stamp_of, task_job
from headrace.connect.data.queues import SinkQueues
from headrace.connect.worker.launching import Figures
from headrace.errors import JobFailedError, TopicNotFoundError
from headrace.spark import StreamJob
from headrace.spark.ticks import Ticks
from headrace.topology import Topology
from headrace.topology.operators.outside import Delivery, Feed, FeedSink, MessageSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.client import Client
    from headrace.connect.data.orders import Start
    from headrace.connect.data.settings import EngineSettings
    from headrace.topology import Operator

__all__ = ["TaskJob"]

#: One that starts has so long until it can be stopped.
_STARTING = timedelta(seconds=10)
#: A batch that is under way has so long to be committed when its job is stopped, s.
_DRAINING = 1.5


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
    waits
        Hears what the task waits for; an empty text: nothing any more.
    """

    def __init__(
        self,
        order: Start,
        client: Client,
        settings: EngineSettings,
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
        if order.paused:
            self._hold.set()
        self.name = task_job(order.unit.connector, order.unit.task)
        if order.role == "source":
            self._impulse = HostImpulse(order.address, lambda: self.batch)
            self._ticks = Ticks(self._impulse, hold=self._hold, provide=self._provide)
            self._say = partial(waits, "")
            topology = Topology(self.name, self._feed())
        else:
            queues = SinkQueues(order, client, self._patience, waits)
            self._ticks = Ticks(opening=queues, hold=self._hold)
            self._say = queues.say
            topology = Topology(self.name, self._delivery(queues))
        self._job = StreamJob(topology, settings.job_settings(), ticks=self._ticks)

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
            self._job.start()
            if self._over.is_set():
                self._job.stop()
                raise JobFailedError("it was stopped while it started")
            self._say()
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

    def _feed(self) -> tuple[Feed, FeedSink]:
        order = self._order
        stamp = stamp_of(order.unit.generation)
        feed = Feed(name="poll", parents=(), intake=HostIntake(order.address), generation=stamp)
        return feed, FeedSink(name="topics", parents=("poll",))

    def _delivery(self, queues: SinkQueues) -> tuple[Operator, ...]:
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
            outlet=HostOutlet(order.address, self._patience),
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
