"""The ``TransactionJob`` class, and a test of Spark's results against the test driver's."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.client import Admin, Client, ClientSettings, MessageQueue, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.errors import HeadraceError, StateError, refuse
from headrace.keys import KEYS, key_from_properties
from headrace.protocol.messages import Message
from headrace.protocol.properties import decode_properties
from headrace.protocol.routes import COMPACTED
from headrace.runtime.checks import needed_topics
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.steps import Migrations, reset
from headrace.runtime.testing.topics import Sent, Written
from headrace.settings import JobSettings
from headrace.spark.job import StreamJob
from headrace.spark.statistics import JobStatistics, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from headrace.runtime.state.interface import StoreFactory
    from headrace.runtime.state.views import StateView
    from headrace.runtime.testing import TopologyTestDriver
    from headrace.spark.cluster import Prepared
    from headrace.topology import Operator, Topology
    from headrace.transactions import TransactionTopology


# Replaying a test's records in a job on Spark, and comparing the results.

_PATIENCE = timedelta(seconds=120)

Batches = Literal["same", "one"]


def assert_same_on_spark(
    driver: TopologyTestDriver,
    *,
    partitions: int = 2,
    batches: Batches = "same",
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Run the records of a test on Spark and compare: every key must get the same results.

    The function starts a broker in a folder of its own, and the job reads the recorded messages
    from it.  For ``emit="update"`` the last result of each key counts, for everything else every
    result.  The clock is not replayed, so the effects of idle timeouts and wall-clock timers are
    not compared.

    Parameters
    ----------
    driver
        The test driver, after the test has sent all records.
    partitions
        The number of partitions of the job on Spark.
    batches
        ``"same"``: each batch of the test is a batch of the job.  ``"one"``: all records are there
        before the job begins.
    settings
        More settings of the job.

    Raises
    ------
    AssertionError
        A key got different results; the message shows both.

    Examples
    --------
    ::

        with TopologyTestDriver(topology) as driver:
            driver.input("lines", serdes.string).pipe(["to be", "or not to be"])
            assert_same_on_spark(driver)
    """
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as folder:
        path = Path(folder)
        with embedded_broker(path) as address, Client(address) as client:
            fixed: dict[str, Any] = {"namesrv": address, "data_dir": path}
            job = JobSettings(**fixed | {"partitions": partitions} | dict(settings or {}))
            with SparkReplay(client, driver.topology, job, driver.queues) as replay:
                replay.run(driver.recorded, batches)
                found = replay.read()
    _compare(driver.topology, driver.replayed(), found)


@dataclass
class SparkReplay:
    """A job on Spark that reads the messages of a test.

    Parameters
    ----------
    client
        A client of the job's cluster.
    topology, settings
        The topology and settings of the job.
    queues
        The number of queues of each source topic on each broker.
    """

    client: Client
    topology: Topology
    settings: JobSettings
    queues: Mapping[str, int]
    #: The number of queues of each topic that the job writes.
    sink_queues: int = 2
    _job: StreamJob | None = None
    _seen: dict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        admin = Admin(self.client)
        tables = {needed.name for needed in needed_topics(self.topology) if needed.compacted}
        for topic, count in self.queues.items():
            if topic not in _own_topics(self.topology):
                attributes = COMPACTED if topic in tables else None
                admin.create_topic(topic, queues=count, attributes=attributes)
        for topic in self._written_topics():
            admin.create_topic(topic, queues=self.sink_queues)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self, recorded: Iterable[Sequence[Sent]], batches: Batches) -> None:
        """Send the recorded messages and run the job until it has committed all of them."""
        if batches == "one":
            self.send([message for batch in recorded for message in batch])
            self.start()
            self.await_done()
            return
        self.start()
        for batch in recorded:
            self.send(batch)
            self.await_done()

    def start(self) -> None:
        """Start the job, or start it again."""
        self._job = StreamJob(self.topology, self.settings).start()

    def stop(self) -> None:
        """Stop the job."""
        if self._job is not None:
            self._job.stop()
            self._job = None

    def await_done(self) -> None:
        """Wait until the job has committed all that was sent."""
        assert self._job is not None, "start the job first"
        self._job.await_caught_up(_PATIENCE)

    def send(self, messages: Iterable[Sent]) -> None:
        """Send messages in order, each to its queue, numbered over all brokers."""
        producer = Producer(self.client)
        queues = {
            (topic, number): queue
            for topic in self.queues
            if topic not in _own_topics(self.topology)
            for number, queue in enumerate(sorted(self.client.queues(topic, for_="write")))
        }
        for message in messages:
            properties = decode_properties(message.properties)
            sent = Message(
                topic=message.topic,
                body=message.body,
                keys=properties.pop(KEYS, None),
                properties=properties,
                born=message.time,
            )
            producer.send(sent, queues[message.topic, message.queue])

    def read(self) -> dict[str, list[Written]]:
        """Return what the job has written since the last call, by topic, queue by queue."""
        consumer = PullConsumer(self.client)
        found: dict[str, list[Written]] = defaultdict(list)
        for topic in self._written_topics():
            for queue in self.client.queues(topic):
                end = consumer.end_offset(queue)
                for block in consumer.blocks(queue, self._seen[queue], end):
                    found[topic] += [
                        Written(message.body, dict(message.properties), message.born)
                        for message in block.messages()
                    ]
                self._seen[queue] = end
        return found

    def _written_topics(self) -> list[str]:
        dead = self.topology.dead_letter_topics
        written = [topic for sink in self.topology.sinks for topic in sink.topics]
        own = _own_topics(self.topology)
        return [topic for topic in dict.fromkeys([*written, *dead]) if topic not in own]


def _own_topics(topology: Topology) -> set[str]:
    """Return the topics that the job makes for itself to read."""
    return {sink.topic for sink in topology.throughs}


def _compare(
    topology: Topology,
    expected: Mapping[str, Sequence[Written]],
    found: Mapping[str, Sequence[Written]],
) -> None:
    updating = {
        written for sink in topology.sinks if _updates(topology, sink) for written in sink.topics
    }
    for topic in dict.fromkeys([*expected, *found]):
        if topic in _own_topics(topology):
            continue
        last = topic in updating
        wanted = _by_key(expected.get(topic, ()), last_only=last)
        given = _by_key(found.get(topic, ()), last_only=last)
        for key in dict.fromkeys([*wanted, *given]):
            here, there = wanted.get(key, []), given.get(key, [])
            assert here == there, (
                f"{key} of topic '{topic}':\n  driver {_shown(here)}\n  Spark  {_shown(there)}"
            )


def _updates(topology: Topology, operator: Operator) -> bool:
    """Return whether the results that reach an operator are updates of earlier ones."""
    parents = [topology.operator(name) for name in operator.parents]
    return any(
        getattr(parent, "emit", None) == "update" or _updates(topology, parent)
        for parent in parents
    )


def _by_key(messages: Iterable[Written], *, last_only: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        window = message.properties.get("window_start_time")
        key = f"key {key_from_properties(message.properties)!r}"
        if window is not None:
            key += f", window from {window},"
        found[key].append(f"{message.body!r} at {message.time}")
    return {key: rows[-1:] if last_only else sorted(rows) for key, rows in found.items()}


def _shown(rows: list[str]) -> str:
    return ", ".join(rows) or "nothing"


logger = logging.getLogger(__name__)

_LOOK = timedelta(seconds=0.2)


class TransactionJob:
    """Runs a topology of spouts and bolts on Spark, each group as a job of its own.

    A group that fails rolls back to its own last commit; the others go on.

    Parameters
    ----------
    topology
        What to run.
    settings
        Where and how to run; keys that are set in the topology's configuration override them.
    migrate
        What to do with the state of components that were renamed; see :class:`StreamJob`.
    stores
        Makes state stores of another kind than RocksDB; see :class:`StreamJob`.

    Examples
    --------
    ::

        with TransactionJob(builder.build(), JobSettings(namesrv="127.0.0.1:9876")).start() as job:
            job.await_termination()
    """

    def __init__(
        self,
        topology: TransactionTopology,
        settings: JobSettings | None = None,
        *,
        migrate: Migrations | None = None,
        stores: StoreFactory | None = None,
    ) -> None:
        self.topology = topology
        self.settings = settings_of(topology, settings or JobSettings())
        self._options: dict[str, Any] = {"migrate": migrate, "stores": stores}
        #: Whether a start obeys ``transaction.topology.reset``.
        self.resets = True
        self._jobs: dict[str, StreamJob] = {}
        self._opened = ExitStack()
        self._told: set[str] = set()

    @property
    def jobs(self) -> Mapping[str, StreamJob]:
        """The jobs of the groups, by name, once they are started."""
        return dict(self._jobs)

    def start(self) -> Self:
        """Start every group.

        Raises
        ------
        HeadraceError
            A group cannot start; then none runs.
        """
        for key, reason in self.topology.config.ignored.items():
            logger.warning("configuration key %s changes nothing: %s", key, reason)
        try:
            if self.topology.config["transaction.topology.reset"] and self.resets:
                self._reset()
            self.prepare()
            for job in self._jobs.values():
                job.start()
        except BaseException:
            self._opened.close()
            raise
        return self

    def prepare(self) -> list[Prepared]:
        """Do what a start needs before any group opens an epoch; see :meth:`StreamJob.prepare`.

        Raises
        ------
        HeadraceError
            Something keeps a group from starting; the error names all problems of all groups.
        """
        jobs = self._made()
        problems = [problem for job in jobs for problem in job.problems()]
        refuse(f"topology '{self.topology.name}' cannot start", problems)
        return [prepared for job in jobs for prepared in job.prepare()]

    def create_topics(self, queues: int | None = None) -> list[str]:
        """Make the missing topics; see :meth:`StreamJob.create_topics`."""
        return [topic for job in self._made() for topic in job.create_topics(queues)]

    def _made(self) -> list[StreamJob]:
        """Return the jobs of the groups; make them, and the topics between groups, if needed."""
        if not self._jobs:
            self._make_topics()
            for group in self.topology.groups:
                job = StreamJob(group, self.settings, **self._options)
                self._jobs[group.name] = self._opened.enter_context(job)
        return list(self._jobs.values())

    @cached_property
    def _namesrv(self) -> str:
        """The address of the cluster."""
        return self.settings.namesrv or self._opened.enter_context(
            embedded_broker(self.settings.data_dir)
        )

    def stop(self) -> None:
        """Stop every group and wait for its end."""
        self._opened.close()

    def await_caught_up(self, timeout: timedelta | None = None) -> None:
        """Wait until everything that is in the topics of topic spouts at this moment is committed.

        Other spouts have no known end, so the call does not wait for them.

        Raises
        ------
        RequestTimeoutError
            That did not happen within ``timeout``.
        HeadraceError
            A group failed.
        """
        deadline = _deadline(timeout)
        for job in self._jobs.values():
            job.await_caught_up(_rest(deadline))

    def await_batches(self, timeout: timedelta | None = None) -> None:
        """Do nothing, because spouts and bolts, unlike streams, have no sinks of whole batches."""

    def await_commit(self, timeout: timedelta | None = None) -> None:
        """Wait until every group has committed a batch since it was started.

        Raises
        ------
        RequestTimeoutError
            A group did not commit a batch within ``timeout``.
        HeadraceError
            A group failed.
        """
        deadline = _deadline(timeout)
        for job in self._jobs.values():
            job.await_commit(_rest(deadline))

    def await_termination(self, timeout: timedelta | None = None) -> bool:
        """Wait until every group has ended; return whether they did within ``timeout``.

        Raises
        ------
        HeadraceError
            A group failed; the first failure is raised when all groups have ended.
        """
        deadline = _deadline(timeout)
        while True:
            running = [name for name, job in self._jobs.items() if not self._ended(name, job)]
            if not running:
                break
            rest = _rest(deadline)
            if rest is not None and rest <= timedelta(0):
                return False
            wait = _LOOK if rest is None else min(rest, _LOOK)
            time.sleep(wait.total_seconds())
        for failure in self.failures.values():
            raise failure
        return True

    @property
    def failures(self) -> Mapping[str, HeadraceError]:
        """The errors of groups that have failed for good, by the names of their jobs."""
        found: dict[str, HeadraceError] = {}
        for name, job in self._jobs.items():
            try:
                job.await_termination(timedelta(0))
            except HeadraceError as error:
                found[name] = error
        return found

    def statistics(self) -> JobStatistics:
        """Return the groups' statistics as one; ``jobs[NAME].statistics()`` has those of one."""
        return total([job.statistics() for job in self._jobs.values()])

    def stalled(self) -> float:
        """Return the longest time of all groups; see :meth:`StreamJob.stalled`."""
        return max((job.stalled() for job in self.jobs.values()), default=0.0)

    def state(self, component: str) -> StateView[Any, Any]:
        """Return a view of a component's state, as of the last commit; see :class:`StateView`.

        Raises
        ------
        StateError
            No component of this name has state, or its group has committed nothing.
        """
        for job in self._jobs.values():
            if component in job.topology.state_topics:
                return job.state(component)
        known = [name for job in self._jobs.values() for name in job.topology.state_topics]
        raise StateError(
            f"topology '{self.topology.name}' has no state of '{component}'",
            hint=f"it has state of {', '.join(known) or 'nothing'}",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _ended(self, name: str, job: StreamJob) -> bool:
        try:
            return job.await_termination(timedelta(0))
        except HeadraceError as error:
            if name not in self._told and len(self._jobs) > 1:
                logger.warning("group %s has failed, the others go on: %s", name, error)
            self._told.add(name)
            return True

    def _make_topics(self) -> None:
        """Make the topics between groups."""
        if self.topology.journal_topics:
            with self._client() as client:
                admin = Admin(client)
                for topic in set(self.topology.journal_topics) - set(admin.topics()):
                    admin.create_topic(topic, queues=self.settings.partitions)

    def _reset(self) -> None:
        """Drop the offsets and state of all groups."""
        with self._client() as client:
            for group in self.topology.groups:
                if reset(StateHome.of(group.name, client)) is not None:
                    logger.warning("job %s begins anew: its offsets and state are gone", group.name)

    def _client(self) -> Client:
        return Client(self._namesrv, ClientSettings(**self.settings.connection))


def settings_of(topology: TransactionTopology, settings: JobSettings) -> JobSettings:
    """Return the settings, overridden by the keys that a topology's configuration sets."""
    given, config = topology.config.given, topology.config
    changes: dict[str, Any] = {}
    if "transaction.exactly.once.mode" in given:
        changes["guarantee"] = topology.guarantee
    if "tuple.num.per.batch" in given:
        changes["max_records_per_batch"] = config["tuple.num.per.batch"]
    if "transaction.batch.snapshot.timeout" in given:
        changes["batch_timeout"] = timedelta(seconds=config["transaction.batch.snapshot.timeout"])
    if "poison.max.rollbacks" in given:
        changes["rollback_retries"] = config["poison.max.rollbacks"]
    return dataclasses.replace(settings, **changes)


def _deadline(timeout: timedelta | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout.total_seconds()


def _rest(deadline: float | None) -> timedelta | None:
    if deadline is None:
        return None
    return timedelta(seconds=max(0.0, deadline - time.monotonic()))
