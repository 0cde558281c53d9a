"""A test's records, replayed by a job on Spark and compared with what the test driver gives."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.keys import KEYS, key_from_properties
from headrace.protocol.messages import Message
from headrace.protocol.properties import decode_properties
from headrace.runtime.testing.topics import Sent, Written
from headrace.settings import JobSettings
from headrace.spark.job import StreamJob

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from headrace.runtime.testing import TopologyTestDriver
    from headrace.topology import Operator, Topology

__all__ = ["SparkReplay", "assert_same_on_spark"]

_PATIENCE = timedelta(seconds=120)

Batches = Literal["same", "one"]


def assert_same_on_spark(
    driver: TopologyTestDriver,
    *,
    partitions: int = 2,
    batches: Batches = "same",
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Run on Spark what a test sent to its driver; every key must get the same results.

    A broker is started in a folder of its own, and the job reads the recorded messages from it.
    Of ``emit="update"`` the last result of each key counts, of all else every result.  The clock
    is not replayed: what idle timeouts and wall-clock timers do is compared by nobody.

    Parameters
    ----------
    driver
        Has been given all records.
    partitions
        Shares of the key space on Spark.
    batches
        ``"same"``: the job has done all of a batch of the test before the next one is sent.
        ``"one"``: all is there before the job begins.
    settings
        More settings of the job.

    Raises
    ------
    AssertionError
        Some key got something else; the message shows both.

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
    """One job on Spark, fed with messages of a test.

    Parameters
    ----------
    client
        Connected to the job's cluster.
    topology, settings
        The job.
    queues
        Queues of its source topics, on each broker.
    """

    client: Client
    topology: Topology
    settings: JobSettings
    queues: Mapping[str, int]
    #: Queues of the topics that it writes.
    sink_queues: int = 2
    _job: StreamJob | None = None
    _seen: dict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    _opened: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        admin = Admin(self.client)
        for topic, count in self.queues.items():
            if topic not in _own_topics(self.topology):
                admin.create_topic(topic, queues=count)
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
        """Send what was recorded and run the job until it has done all of it."""
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
        """Send messages in their order, each to its own queue, counted over all brokers."""
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
        """Give what the job has written since the last time, by topic, queue by queue."""
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
    """Give the topics that the job makes and reads itself."""
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
    """Tell whether results that reach an operator take the place of earlier ones."""
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
