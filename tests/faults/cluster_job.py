"""The proof job for several brokers: beside it, windows over queues whose places look alike.

A topic has a queue on each broker, and each hour of its times is in one queue.  Its messages come
to lie at the same positions of the brokers' logs: who takes one for a message of another queue,
takes the next one of that queue for late.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from headrace import StreamBuilder, serdes, tumbling
from headrace.client import Admin, Client, Producer
from headrace.topology import Topology
from tests.faults.own_cluster import align, positions_of
from tests.faults.proof_pipeline import Names, prove

__all__ = ["ClusterNames", "feed_hours", "proof_on_cluster"]

_MESSAGES = 40
_SECONDS = timedelta(seconds=10)
_FIRST, _HOUR = 1_000_000_000_000, 3_600_000


@dataclass(frozen=True, slots=True)
class ClusterNames(Names):
    """Topics of a job on several brokers."""

    @property
    def hours(self) -> str:
        """Times, ms since 1970, an hour in each queue."""
        return f"{self.source or self.job}-hours"

    @property
    def counted_hours(self) -> str:
        """How many there were in each ten seconds."""
        return f"{self.job}-counted-hours"

    @property
    def sinks(self) -> tuple[str, ...]:
        # Without arguments super() looks for a class that slots have replaced.
        return *super(ClusterNames, self).sinks, self.counted_hours


def proof_on_cluster(names: ClusterNames) -> Topology:
    """Make the topology."""
    builder = StreamBuilder(names.job)
    prove(builder, names)
    hours = builder.source(
        names.hours,
        serdes.string,
        timestamp=int,
        allowed_lateness=timedelta(0),
        idle_timeout=None,
        name="read-hours",
    )
    together = hours.key_by(lambda _: "all", name="by-all")
    counted = together.window(tumbling(_SECONDS)).count(name="hours")
    counted.to_stream().sink(names.counted_hours, serdes.json, name="write-hours")
    return builder.build()


def feed_hours(client: Client, names: ClusterNames) -> None:
    """Send the times, each broker's at the same positions of its log."""
    Admin(client).create_topic(names.hours, queues=1)
    align(client)
    queues = sorted(client.queues(names.hours, for_="write"))
    for number, queue in enumerate(queues):
        first = _FIRST + number * _HOUR
        times = [b"%d" % (first + 1000 * second) for second in range(_MESSAGES)]
        Producer(client).send_columns(queue, pa.array(times, pa.binary()))
    positions = [positions_of(client, queue) for queue in queues]
    assert all(found == positions[0] for found in positions)
