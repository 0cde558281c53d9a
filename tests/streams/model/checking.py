"""Sends the records of the model to a job, and holds what it wrote against the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from headrace import Topology, serdes
from headrace.client import Client, PullConsumer
from headrace.runtime.testing import TestInput
from headrace.runtime.testing.topics import Sent as Message
from headrace.spark import SparkReplay
from tests.streams.model.inputs import Sent, given
from tests.streams.model.jobs import output
from tests.streams.model.plans import Plan, Record
from tests.streams.test_model import EPOCH, KEYED, compared, record
from tests.transactions.cases.evidence import read_history

__all__ = ["arrived", "check", "messages"]


def messages(sent: Sequence[Sent]) -> list[Message]:
    """Write records as messages."""
    taken: list[Message] = []
    for one in sent:
        time = EPOCH + timedelta(milliseconds=one.time)
        way: Any = TestInput(one.topic, serdes.json, one.queue, taken.extend, datetime.now)
        way.send(one.value, key=one.key, time=time)
    return taken


def arrived(client: Client, job: Topology, sent: Sequence[Sent]) -> list[Sent]:
    """Sort records by their places: batch by batch, by position and, of one position, by broker."""
    commits = read_history(client, job)
    consumer = PullConsumer(client)
    places: dict[tuple[str, int, int], tuple[int, int, str]] = {}
    for topic in {one.topic for one in sent}:
        for number, queue in enumerate(sorted(client.queues(topic))):
            for block in consumer.blocks(queue, 0, consumer.end_offset(queue)):
                for message in block.messages():
                    offset = message.queue_offset
                    batch = next(c.batch for c in commits if c.offsets.get(queue.name, 0) > offset)
                    places[topic, number, offset] = (batch, message.position, queue.broker)
    count: Counter[tuple[str, int]] = Counter()
    placed = []
    for one in sent:
        placed.append((places[one.topic, one.queue, count[one.topic, one.queue]], one))
        count[one.topic, one.queue] += 1
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def check(
    replay: SparkReplay, plans: Sequence[Plan], sent: Sequence[Sent], *, one_log: bool = True
) -> None:
    """Compare what every plan gave with what the model says.

    Only one log gives lists one order however batches are cut, and the protocol for several
    brokers gives results that are sent together one time.
    """
    written = replay.read()
    for number, plan in enumerate(plans):
        found = [record(message.read(KEYED)) for message in written[output(number)]]
        wanted = [row for _, row in plan.expected(given(sent))]
        if not one_log:
            found, wanted = _loosened(plan, found), _loosened(plan, wanted)
        assert compared(plan, found) == compared(plan, wanted), plan


def _loosened(plan: Plan, rows: Sequence[Record]) -> list[Record]:
    if getattr(plan, "kind", "") == "collect":
        rows = [row._replace(value=sorted(row.value)) for row in rows]
    return [row._replace(time=0) for row in rows]
