"""Merged, parted and moved streams and users' processors on Spark: as in the test driver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from headrace import (
    Context,
    Fired,
    Processor,
    Record,
    StreamBuilder,
    Topology,
    TopologyTestDriver,
    event_timer,
    list_state,
    map_state,
    serdes,
    value_state,
)
from headrace.spark import assert_same_on_spark

pytestmark = pytest.mark.spark

START = datetime(2025, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


class Sessions(Processor[str, int, str, str]):
    """Gives what came for a key until it was silent for five seconds."""

    def init(self, context: Context) -> None:
        self.context = context
        self.last, self.items = context.value("last"), context.list("items")
        self.seen, self.silent = context.map("seen"), context.timer("silent")

    def process(self, record: Record[str, int]) -> None:
        last = self.last.get()
        if last is not None:
            self.silent.clear(last + 5 * SECOND)
        self.last.put(record.time)
        self.items.append(record.value)
        self.seen.put(record.value, True)
        self.silent.set(record.time + 5 * SECOND)
        if record.value % 10 == 0:
            self.context.forward(record.with_value(str(record.headers)), child="round")

    def fire(self, timer: Fired[str]) -> None:
        found = f"{list(self.items)} {len(dict(self.seen.items()))}"
        self.context.forward(Record(timer.key, found, timer.time))
        self.last.delete()
        self.items.clear()


async def doubled(number: int) -> int:
    return number * 2


@dataclass
class Measured:
    kind: str
    number: int | None


def measured(number: int) -> Measured:
    return Measured(f"k{number % 3}", number)


def topology() -> Topology:
    builder = StreamBuilder("flow")
    numbers = builder.source("numbers", serdes.int, allowed_lateness=timedelta(0))
    parts = numbers.repartition().map_async(doubled).branch(small=lambda n: n < 40)
    merged = parts.small.merge(parts.rest.map_values(lambda n: n + 1))
    sessions = merged.key_by(lambda n: f"k{n % 3}").process(
        Sessions,
        states=[value_state("last"), list_state("items"), map_state("seen", ttl=60 * SECOND)],
        timers=[event_timer("silent")],
        outputs=["round"],
    )
    sessions.sink("sessions", serdes.string)
    sessions.output("round").sink(
        lambda key, _: f"round-{key}",
        serdes.string,
        topics=["round-k0", "round-k1", "round-k2"],
        key=lambda key, text: (key, len(text)),
        partition=lambda _: 1,
    )
    measurements = merged.map_values(measured).key_by(lambda one: one.kind)
    measurements.reduce(lambda left, right: right if right.number else left).sink("measured")
    return builder.build()


@pytest.mark.parametrize("executor", ["micro-batch", "resident"])
def test_flow_and_processors_give_the_same_on_spark(executor: str) -> None:
    with TopologyTestDriver(topology(), start=START) as driver:
        numbers = driver.input("numbers", serdes.int)
        at = 0
        for batch in range(4):
            with driver.batch():
                for number in range(15):
                    at += 1 if number % 4 else 3
                    numbers.send(batch * 15 + number, time=START + at * SECOND)
        assert not driver.output("sessions", serdes.string).is_empty()
        assert driver.output("measured", Measured).read().value.kind == "k0"
        assert_same_on_spark(driver, settings={"master": "local[2,4]", "executor": executor})
