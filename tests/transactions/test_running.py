"""What is built runs: every grouping, streams, topics at both ends, spouts by offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import TopologyTestDriver, serdes
from headrace.topology import BoltCollector, TaskContext, Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopology,
    TransactionTopologyBuilder,
)
from tests.transactions.components import Basic, Count, KeyCount, Numbers, Pass, Sorter

WORDS = ["be", "or", "that", "question", "be", "not"]


class Tag(Bolt):
    """Emits each word with the number of the task that took it, and where it came from."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "task", "source")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.task, self.collector = context.task, collector

    def execute(self, taken: Tuple, /) -> None:
        self.collector.emit([taken["word"], self.task, taken.source_component])


class ByLength:
    """Sends a word to the task of its length."""

    def choose(self, values: tuple[Any, ...], tasks: int) -> Sequence[int]:
        return [len(values[0]) % tasks]


def words(**config: object) -> TransactionTopologyBuilder:
    builder = TransactionTopologyBuilder("words", config)
    builder.set_spout("words", TopicSpout("words", serdes.string, fields=["word"]))
    return builder


def written(topology: TransactionTopology, given: Sequence[str] = WORDS) -> list[Any]:
    (group,) = topology.groups
    with TopologyTestDriver(group, partitions=2) as driver:
        with driver.batch():
            driver.input("words", serdes.string).pipe(given)
        return [record.value for record in driver.output("out", serdes.json).read_all()]


def tasks_by(grouping: str, *arguments: Any) -> list[tuple[str, int]]:
    """Run three tasks that take words by a grouping; tell which took which."""
    builder = words()
    builder.set_bolt("pass", Pass()).local_or_shuffle_grouping("words")
    getattr(builder.set_bolt("tag", Tag(), 3), f"{grouping}_grouping")("pass", *arguments)
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("tag")
    return [(row["word"], row["task"]) for row in written(builder.build())]


@pytest.mark.parametrize("grouping", ["shuffle", "local_or_shuffle"])
def test_each_tuple_goes_to_some_task(grouping: str) -> None:
    assert Counter(word for word, _ in tasks_by(grouping)) == Counter(WORDS)


def test_equal_fields_go_to_one_task() -> None:
    found = tasks_by("fields", "word")
    assert Counter(word for word, _ in found) == Counter(WORDS)
    assert len({task for word, task in found if word == "be"}) == 1


def test_all_tasks_take_every_tuple() -> None:
    expected = Counter((word, task) for word in WORDS for task in range(3))
    assert Counter(tasks_by("all")) == expected


def test_task_0_takes_everything() -> None:
    assert Counter(tasks_by("global")) == Counter((word, 0) for word in WORDS)


def test_a_grouping_of_ones_own_chooses() -> None:
    expected = Counter((word, len(word) % 3) for word in WORDS)
    assert Counter(tasks_by("custom", ByLength())) == expected


def test_streams_and_direct_tuples_go_their_own_ways() -> None:
    builder = words()
    builder.set_bolt("sort", Sorter()).shuffle_grouping("words")
    builder.set_bolt("long", Tag(), 2).direct_grouping("sort", "long")
    builder.set_bolt("short", Tag(), 2).fields_grouping("sort", "length", stream="short")
    both = builder.set_sink("out", TopicSink("out", serdes.json))
    both.shuffle_grouping("long").shuffle_grouping("short")
    found = written(builder.build())
    longs = {(row["word"], row["task"]) for row in found if len(row["word"]) >= 4}
    assert longs == {("that", 0), ("question", 0)}
    assert Counter(row["word"] for row in found) == Counter(WORDS)
    assert {row["source"] for row in found} == {"sort"}


def test_a_basic_bolt_runs_as_it_is() -> None:
    """R4."""
    builder = words()
    builder.set_bolt("split", Basic(), 2).local_or_shuffle_grouping("words")
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("split")
    assert written(builder.build(), ["to be", "or not"]) == ["to", "be", "or", "not"]


@pytest.mark.parametrize("bolt", [Count(), KeyCount()], ids=["by task", "by key"])
def test_a_topic_by_key_has_the_changes_of_a_key_in_order(bolt: StatefulBolt | KeyCount) -> None:
    builder = words()
    builder.set_bolt("count", bolt, 2).fields_grouping("words", "word")
    builder.set_bolt("pass", Pass("word", "count"), 3).shuffle_grouping("count")
    sink = TopicSink("out", serdes.json, key_field="word")
    builder.set_sink("out", sink).fields_grouping("count", "word")
    (group,) = builder.build().groups
    with TopologyTestDriver(group) as driver:
        for _ in range(2):
            driver.input("words", serdes.string).pipe(WORDS)
        found = driver.output("out", serdes.with_key(serdes.json)).read_all()
        be = [record.value for record in found if record.key == "be"]
    assert be == [1, 2, 3, 4]


def test_the_key_of_a_message_is_a_field() -> None:
    builder = TransactionTopologyBuilder("words")
    spout = TopicSpout("words", serdes.json, fields=["a", "b"], key_field="word")
    builder.set_spout("words", spout)
    builder.set_bolt("pass", Pass("word", "a", "b")).shuffle_grouping("words")
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("pass")
    (group,) = builder.build().groups
    with TopologyTestDriver(group) as driver:
        driver.input("words", serdes.json).send({"b": 2, "a": 1}, key="be")
        driver.input("words", serdes.json).send([3, 4], key="or")
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert found == [{"word": "be", "a": 1, "b": 2}, {"word": "or", "a": 3, "b": 4}]


def test_a_spout_by_offset_ends_each_batch_where_its_offset_says() -> None:
    builder = TransactionTopologyBuilder("numbers", {"tuple.num.per.batch": 4})
    builder.set_spout("spout", Numbers(10), 2)
    builder.set_bolt("pass", Pass("number"), 2).local_or_shuffle_grouping("spout")
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("pass")
    (group,) = builder.build().groups
    with TopologyTestDriver(group, partitions=2) as driver:
        sizes = []
        for _ in range(4):
            driver.run_batches()
            sizes.append(driver.state("spout").get(0))
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert sizes == [4, 8, 10, 10]
    # Both tasks read everything: what each reads is the spout's own business.
    assert Counter(found) == dict.fromkeys(range(10), 2)
