"""Tuples that a bolt cannot handle: the batch fails with the message named, or goes on without."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopologyTestDriver, serdes
from headrace.errors import RollbackError
from headrace.topology import BoltCollector, TaskContext, Tuple
from headrace.transactions import Bolt, FieldsDeclarer, Spout, StatefulBolt
from tests.transactions.wiring import Wiring


class Inverse(Bolt):
    """Emits twice before it divides, which zero prevents."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("key", "value")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.collector.emit(("seen", tuple["number"]))
        self.collector.emit(("inverse", 1 / tuple["number"]))


class Total(StatefulBolt):
    """Adds numbers up and tells what there is at the end of each batch."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("key", "value")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def init_state(self, state: Any) -> None:
        self.total = state or 0

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.total += tuple["number"]

    def finish_batch(self) -> int:
        self.collector.emit(("total", self.total))
        return self.total


class Numbers(Spout):
    """Emits 2, 1, 0 once."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("number")

    def init_state(self, state: Any) -> None:
        self.left = 3 if state is None else state

    def next_tuple(self, collector: Any) -> None:
        if self.left:
            self.left -= 1
            collector.emit([self.left])

    def finish_batch(self) -> int:
        return self.left


def topic_wiring(**options: Any) -> Wiring:
    wiring = Wiring().topic("numbers", "numbers", ("number",))
    wiring.bolt("inverse", Inverse(), ("numbers", "local_or_shuffle"), **options)
    return wiring.sink("out", "inverse", "inverses")


def test_a_topic_is_a_spout_whose_failures_name_the_message() -> None:
    with TopologyTestDriver(topic_wiring().build()) as driver:
        numbers = driver.input("numbers", serdes.json)
        numbers.pipe([4, 2])
        with pytest.raises(RollbackError) as caught:
            numbers.send(0)
        numbers.send(1)
        found = driver.output("inverses", serdes.json).read_all()
    assert "failed in execute on a tuple of topic 'numbers', queue 0, offset 2" in str(caught.value)
    assert "test_poison.py" in (caught.value.line or "")
    assert [record.value for record in found] == [4, 0.25, 2, 0.5, 1, 1.0]


def test_a_bad_tuple_of_a_topic_goes_to_dead_letters_with_nothing_of_what_it_emitted() -> None:
    with TopologyTestDriver(topic_wiring(on_error="topic:dead").build()) as driver:
        numbers = driver.input("numbers", serdes.json)
        with driver.batch():
            numbers.pipe([4, 0, 2])
        found = driver.output("inverses", serdes.json).read_all()
        (dead,) = driver.output("dead", serdes.json).read_all()
        assert driver.counters["dead_lettered:inverse"] == 1
    assert [record.value for record in found] == [4, 0.25, 2, 0.5]
    assert dead.value == 0
    assert dead.headers["HEADRACE_DEAD_EXCEPTION"] == "ZeroDivisionError"
    assert dead.headers["HEADRACE_DEAD_OFFSET"] == "1"


def test_a_bad_tuple_of_a_spout_goes_to_dead_letters_as_its_values() -> None:
    wiring = Wiring().spout("spout", Numbers(), batch_size=0)
    wiring.bolt("inverse", Inverse(), ("spout", "shuffle"), tasks=2, on_error="topic:dead")
    wiring.sink("out", "inverse", "inverses")
    with TopologyTestDriver(wiring.build()) as driver:
        driver.run_batches(1)
        found = driver.output("inverses", serdes.json).read_all()
        (dead,) = driver.output("dead", serdes.json).read_all()
    assert sorted(record.value for record in found) == [0.5, 1, 1.0, 2]
    assert dead.value == [0]
    assert dead.headers["HEADRACE_DEAD_OPERATOR"] == "inverse"


def test_what_finish_batch_emits_belongs_to_the_batch() -> None:
    wiring = Wiring().topic("numbers", "numbers", ("number",))
    wiring.bolt("total", Total(), ("numbers", "global"))
    wiring.sink("out", "total", "totals")
    with TopologyTestDriver(wiring.build()) as driver:
        for batch in ([1, 2], [3], []):
            with driver.batch():
                driver.input("numbers", serdes.json).pipe(batch)
        found = driver.output("totals", serdes.json).read_all()
    assert [record.value for record in found] == [3, 6, 6]
    assert {record.key for record in found} == {"total"}


def test_a_topic_gives_keys_and_several_fields() -> None:
    wiring = Wiring().topic("pairs", "pairs", ("a", "b"), key="k")
    wiring.sink("out", "pairs", "copies")
    with TopologyTestDriver(wiring.build()) as driver:
        pairs = driver.input("pairs", serdes.json)
        pairs.send({"b": 2, "a": 1})
        pairs.send([3, 4])
        with pytest.raises(Exception, match="1 values for the 2 fields a, b"):
            pairs.send([5])
        found = driver.output("copies", serdes.json).read_all()
    assert [record.value for record in found] == [[1, 2], [3, 4]]
