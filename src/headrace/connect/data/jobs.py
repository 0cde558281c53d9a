"""A task of a connector as a job: its topology, its settings, and what begins its batches."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.client import Admin
from headrace.connect.data.edges import HostImpulse, HostIntake, HostOutlet
from headrace.connect.data.positions import read_positions, stamp_of, task_job
from headrace.connect.hosts.channel import TaskChannel
from headrace.connect.records import Queue
from headrace.connect.worker.launching import Figures
from headrace.errors import TopicNotFoundError
from headrace.protocol.transactions import Share
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from headrace.spark.ticks import Ticks
from headrace.topology import Topology
from headrace.topology.operators.outside import Delivery, Feed, FeedSink, MessageSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.client import Client
    from headrace.client.queues import MessageQueue
    from headrace.connect.data.orders import Start
    from headrace.topology import Operator

__all__ = ["EngineSettings", "TaskJob"]

_STARTING = timedelta(seconds=30)
#: A batch that is under way has so long to be committed when its job is stopped, s.
_DRAINING = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Where the jobs of all tasks run."""

    namesrv: str
    #: Folder for scratch files.
    folder: Path
    master: str = "local[2,4]"
    #: How long a batch may take: longer than a task may be stuck before it is forced to end.
    batch_timeout: timedelta = timedelta(minutes=10)
    spark_config: dict[str, str] = field(default_factory=dict)

    def job_settings(self, *, exact: bool) -> JobSettings:
        """Give the settings of one task's job."""
        return JobSettings(
            namesrv=self.namesrv,
            data_dir=self.folder,
            partitions=1,
            master=self.master,
            batch_timeout=self.batch_timeout,
            rollback_retries=2,
            guarantee="exactly_once" if exact else "at_least_once",
            spark_config={"spark.sql.streaming.pollingDelay": "50ms", **self.spark_config},
        )


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
    """

    def __init__(self, order: Start, client: Client, settings: EngineSettings) -> None:
        self._order = order
        self._client = client
        self._hold = threading.Event()
        if order.paused:
            self._hold.set()
        self.name = task_job(order.unit.connector, order.unit.task)
        source = order.role == "source"
        topology = Topology(self.name, self._feed() if source else self._delivery())
        impulse = HostImpulse(order.address, lambda: self.batch) if source else None
        self._ticks = Ticks(impulse, hold=self._hold, provide=self._provide)
        self._job = StreamJob(topology, settings.job_settings(exact=order.exact), ticks=self._ticks)

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
        """Begin."""
        self._job.start()

    def await_end(self) -> None:
        """Wait for the job's end; raise what ended it, where nobody has stopped it."""
        self._job.await_termination()

    def stop(self) -> None:
        """End the query, behind the batch that is under way; one that takes long is dropped."""
        self._hold.set()
        self._ticks.rests.wait(_DRAINING)
        self._job.stop()

    def _feed(self) -> tuple[Feed, FeedSink]:
        order = self._order
        stamp = stamp_of(order.unit.generation)
        feed = Feed(name="poll", parents=(), intake=HostIntake(order.address), generation=stamp)
        return feed, FeedSink(name="topics", parents=("poll",))

    def _delivery(self) -> tuple[Operator, ...]:
        order = self._order
        pattern = re.compile(order.pattern) if order.pattern else None
        source = MessageSource(
            name="messages",
            parents=(),
            topic=tuple(order.topics) if pattern is None else pattern,
            number=order.unit.task,
            of=order.tasks,
            start=self._open(),
            start_once=False,
        )
        outlet = Delivery(
            name="put",
            parents=("messages",),
            outlet=HostOutlet(order.address),
            generation=stamp_of(order.unit.generation),
        )
        if not order.letters:
            return source, outlet
        self._provide([order.letters])
        return source, outlet, FeedSink(name="letters", parents=("put",), topic=order.letters)

    def _open(self) -> dict[str | int, int]:
        """Give the task its queues; tell where it goes on, by itself or by the last commits."""
        order = self._order
        share = Share(number=order.unit.task, of=order.tasks)
        queues = {queue.name: queue for queue in self._queues() if share.owns(queue.name)}
        known = read_positions(self._client, order.unit.connector)
        places = {
            name: Queue(queue.topic, queue.broker, queue.queue_id) for name, queue in queues.items()
        }
        committed = {places[name]: known[name] for name in places if name in known}
        with TaskChannel(order.address, _STARTING) as channel:
            kept = channel.open(places.values(), committed)
        offsets = {**committed, **(kept or {})}
        return {name: offsets[place] for name, place in places.items() if place in offsets}

    def _queues(self) -> list[MessageQueue]:
        order = self._order
        topics = order.topics
        if order.pattern:
            whole = re.compile(order.pattern)
            topics = [topic for topic in Admin(self._client).topics() if whole.fullmatch(topic)]
        return [queue for topic in topics for queue in self._client.queues(topic)]

    def _provide(self, topics: Sequence[str]) -> dict[str, list[str]]:
        """Give the queues of topics, and make those that are missing."""
        found: dict[str, list[str]] = {}
        for topic in topics:
            try:
                queues = self._client.queues(topic, for_="write")
            except TopicNotFoundError:
                Admin(self._client).create_topic(topic, self._order.queues)
                queues = self._client.queues(topic, for_="write")
            found[topic] = [queue.name for queue in sorted(queues)]
        return found
