"""Topologies of spouts and bolts: kinds, order, what is built."""

from __future__ import annotations

import pytest

from headrace import TopologyError, serdes
from headrace.topology import (
    Bolt,
    KeyValueBoltNode,
    Map,
    Merge,
    Repartition,
    Sink,
    Source,
    Spout,
    StatefulBoltNode,
    Subscription,
    TaskContext,
    Tuple,
    Tuples,
    state_shape,
)
from headrace.transactions import (
    BoltLike,
    TopicSink,
    TopicSpout,
    TransactionTopology,
    TransactionTopologyBuilder,
)
from tests.transactions.components import (
    Basic,
    Collected,
    Count,
    End,
    KeyCount,
    Numbers,
    Pass,
    Sorter,
    Words,
)


def words(**config: object) -> TransactionTopologyBuilder:
    builder = TransactionTopologyBuilder(
        "words", {name.replace("_", "."): value for name, value in config.items()}
    )
    builder.set_spout("spout", Words())
    return builder


def kinds(topology: TransactionTopology) -> dict[str, set[str]]:
    return {name: set(kind) for name, kind in topology.kinds.items()}


class TestKinds:
    """R1 to R3: the kind of a component follows from what it is and from who takes its tuples."""

    def test_a_line(self) -> None:
        """R1."""
        builder = words()
        builder.set_bolt("split", Pass()).shuffle_grouping("spout")
        builder.set_bolt("end", End()).shuffle_grouping("split")
        assert kinds(builder.build()) == {
            "spout": {"spout"},
            "split": {"non-stateful bolt"},
            "end": {"end bolt"},
        }

    def test_a_stateful_end(self) -> None:
        """R2."""
        builder = words()
        builder.set_bolt("count", Count()).fields_grouping("spout", "word")
        assert kinds(builder.build())["count"] == {"stateful bolt", "end bolt"}

    def test_outputs_that_nobody_takes(self) -> None:
        """R3."""
        builder = words()
        builder.set_bolt("split", Pass()).shuffle_grouping("spout")
        assert kinds(builder.build())["split"] == {"end bolt"}

    def test_one_stream_of_two_is_taken(self) -> None:
        """R3."""
        builder = words()
        builder.set_bolt("sort", Sorter()).shuffle_grouping("spout")
        builder.set_bolt("long", End()).direct_grouping("sort", "long")
        assert kinds(builder.build())["sort"] == {"non-stateful bolt"}

    def test_values_by_key_are_state(self) -> None:
        """R1."""
        builder = words()
        builder.set_bolt("count", KeyCount()).fields_grouping("spout", "word")
        builder.set_bolt("end", End()).shuffle_grouping("count")
        assert kinds(builder.build())["count"] == {"stateful bolt"}

    def test_a_diamond_with_topics(self) -> None:
        """R1."""
        builder = TransactionTopologyBuilder("words")
        builder.set_spout("spout", TopicSpout("lines", serdes.string, fields=["word"]))
        builder.set_bolt("left", Pass()).shuffle_grouping("spout")
        builder.set_bolt("right", Pass()).shuffle_grouping("spout")
        both = builder.set_bolt("count", Count())
        both.fields_grouping("left", "word").fields_grouping("right", "word")
        builder.set_sink("out", TopicSink("counts", serdes.json)).shuffle_grouping("count")
        assert kinds(builder.build()) == {
            "spout": {"spout"},
            "left": {"non-stateful bolt"},
            "right": {"non-stateful bolt"},
            "count": {"stateful bolt"},
            "out": {"end bolt"},
        }


def test_a_basic_bolt_needs_nothing_of_ours() -> None:
    """R4: the same object runs by hand with any collector, and builds."""
    bolt: BoltLike = Basic()
    found = Collected()
    bolt.prepare(TaskContext("words", "split", 0, 1), found)
    bolt.execute(Tuple(("to be",), ("word",), "spout", 0))
    assert found.emitted == [("default", None, ["to"]), ("default", None, ["be"])]
    builder = words()
    builder.set_bolt("split", Basic()).shuffle_grouping("spout")
    assert kinds(builder.build())["split"] == {"end bolt"}


def test_only_the_configuration_tells_the_guarantees_apart() -> None:
    """R5: both modes compile to the same operators."""

    def built(*, exactly_once: bool) -> TransactionTopology:
        builder = TransactionTopologyBuilder(
            "words", {"transaction.exactly.once.mode": exactly_once}
        )
        builder.set_spout("spout", Words())
        builder.set_bolt("count", Count(), 2).fields_grouping("spout", "word")
        return builder.build()

    once, more = built(exactly_once=True), built(exactly_once=False)
    assert once.groups[0].describe() == more.groups[0].describe()
    assert (once.guarantee, more.guarantee) == ("exactly_once", "at_least_once")


class TestCircles:
    """R6."""

    def test_two_bolts_that_feed_each_other_are_refused_with_both_lines(self) -> None:
        builder = words()
        builder.set_bolt("a", Pass()).shuffle_grouping("spout").shuffle_grouping("b")
        builder.set_bolt("b", Pass()).shuffle_grouping("a")
        with pytest.raises(TopologyError) as refused:
            builder.build()
        message = str(refused.value)
        assert "in a circle: a -> b -> a" in message or "in a circle: b -> a -> b" in message
        assert message.count("test_builder.py:") == 2
        assert "TopicSink" in message

    def test_a_bolt_that_feeds_itself_is_refused(self) -> None:
        builder = words()
        builder.set_bolt("a", Pass()).shuffle_grouping("spout").shuffle_grouping("a")
        with pytest.raises(TopologyError, match="in a circle: a -> a"):
            builder.build()

    def test_what_lies_behind_a_circle_is_not_blamed(self) -> None:
        builder = words()
        builder.set_bolt("end", End()).shuffle_grouping("b")
        builder.set_bolt("a", Pass()).shuffle_grouping("spout").shuffle_grouping("b")
        builder.set_bolt("b", Pass()).shuffle_grouping("a")
        with pytest.raises(TopologyError, match=r"in a circle: [ab] -> [ab] -> [ab] ") as refused:
            builder.build()
        assert "'end'" not in str(refused.value)


def test_components_may_be_added_in_any_order() -> None:
    builder = TransactionTopologyBuilder("words")
    builder.set_bolt("count", Count()).fields_grouping("split", "word")
    builder.set_bolt("split", Pass()).shuffle_grouping("spout")
    builder.set_spout("spout", Words())
    (topology,) = builder.build().groups
    assert [operator.name for operator in topology.operators] == [
        "spout",
        "spout-to-split",
        "split",
        "split-to-count",
        "count",
    ]


def test_local_tuples_stay_and_others_move() -> None:
    builder = words()
    builder.set_bolt("split", Pass(), 2).local_or_shuffle_grouping("spout")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    builder.set_bolt("end", End()).shuffle_grouping("count")
    (topology,) = builder.build().groups
    stages = [[o.name for o in stage.operators] for stage in topology.plan.stages]
    assert stages == [
        ["spout", "spout-to-split", "split", "split-to-count"],
        ["count", "count-to-end"],
        ["end"],
    ]


def test_a_stateful_bolt_is_moved_to_also_where_it_could_stay() -> None:
    builder = words()
    builder.set_bolt("count", Count(), 2).local_or_shuffle_grouping("spout")
    (topology,) = builder.build().groups
    assert topology.plan.stage_of("count") == 1


def test_operators_say_what_the_components_said() -> None:
    builder = words(tuple_num_per_batch=7, transaction_schedule_batch_delay_ms=20)
    builder.set_bolt("sort", Sorter(), 3).shuffle_grouping("spout")
    builder.set_bolt("count", Count(), 2).fields_grouping("sort", "length", "word", stream="short")
    builder.set_bolt("long", End(), 4).direct_grouping("sort", "long")
    (topology,) = builder.build().groups
    spout, sort = topology.operator("spout"), topology.operator("sort")
    assert isinstance(spout, Spout)
    assert (spout.batch_size, spout.delay_ms, spout.parallelism) == (7, 20, 1)
    assert isinstance(sort, Bolt)
    assert not isinstance(sort, StatefulBoltNode)
    assert (sort.parallelism, sort.direct_streams) == (3, frozenset({"long"}))
    assert sort.streams == {"short": ("word", "length"), "long": ("word",)}
    assert isinstance(topology.operator("count"), StatefulBoltNode)
    way = topology.operator("sort-short-to-count")
    assert isinstance(way, Subscription)
    assert (way.output, way.stream, way.tasks) == ("short", "short", 2)
    assert (way.grouping.kind, way.grouping.fields) == ("fields", (1, 0))
    direct = topology.operator("sort-long-to-long")
    assert isinstance(direct, Subscription)
    assert (direct.grouping.kind, direct.tasks) == ("direct", 4)


def test_keys_go_to_ranges_whatever_the_parallelism() -> None:
    def built(parallelism: int) -> KeyValueBoltNode:
        builder = words(key_range_num=64)
        builder.set_bolt("count", KeyCount(), parallelism).fields_grouping("spout", "word")
        (topology,) = builder.build().groups
        way, bolt = topology.operator("spout-to-count"), topology.operator("count")
        assert isinstance(way, Subscription)
        assert isinstance(bolt, KeyValueBoltNode)
        assert (way.tasks, bolt.ranges) == (64, 64)
        return bolt

    assert state_shape(built(1)) == state_shape(built(4))


def test_the_state_of_tasks_belongs_to_their_number() -> None:
    def built(parallelism: int) -> StatefulBoltNode:
        builder = words()
        builder.set_bolt("count", Count(), parallelism).fields_grouping("spout", "word")
        bolt = builder.build().groups[0].operator("count")
        assert isinstance(bolt, StatefulBoltNode)
        return bolt

    assert state_shape(built(1)) != state_shape(built(2))


def test_a_topic_is_an_ordinary_source_with_tuples_behind_it() -> None:
    builder = TransactionTopologyBuilder("words")
    spout = TopicSpout("lines", serdes.json, fields=["a", "b"], key_field="k", start="latest")
    builder.set_spout("lines", spout)
    builder.set_bolt("end", End()).fields_grouping("lines", "k")
    (topology,) = builder.build().groups
    source, tuples = topology.operator("lines-topic"), topology.operator("lines")
    assert isinstance(source, Source)
    assert (source.topic, source.start) == ("lines", "latest")
    assert repr(source.deserializer) == "with_key(json, of=object)"
    assert isinstance(tuples, Tuples)
    assert (tuples.fields, tuples.key_field) == (("a", "b"), "k")
    way = topology.operator("lines-to-end")
    assert isinstance(way, Subscription)
    assert way.fields == ("k", "a", "b")


class TestTopicSinks:
    def sink(self, sink: TopicSink, *fields: str) -> tuple[object, list[type]]:
        builder = words()
        builder.set_bolt("count", Count()).fields_grouping("spout", "word")
        declarer = builder.set_sink("out", sink)
        if fields:
            declarer.fields_grouping("count", *fields)
        else:
            declarer.shuffle_grouping("count")
        (topology,) = builder.build().groups
        record = topology.operator("count-to-out")
        assert isinstance(record, Map)
        behind = [type(o) for o in topology.operators if o.name.startswith("out")]
        return record.function(None, ("be", 3)), behind

    def test_all_fields_without_a_key(self) -> None:
        sink = TopicSink("counts", serdes.json)
        assert self.sink(sink) == ((None, {"word": "be", "count": 3}), [Sink])

    def test_the_field_of_the_key_is_left_out_of_the_value(self) -> None:
        sink = TopicSink("counts", serdes.json, key_field="word")
        assert self.sink(sink) == (("be", 3), [Sink])

    def test_fields_that_are_named_are_written(self) -> None:
        sink = TopicSink("counts", serdes.json, key_field="word", fields=["word", "count"])
        assert self.sink(sink) == (("be", {"word": "be", "count": 3}), [Sink])

    def test_grouping_by_fields_makes_them_the_key_and_moves(self) -> None:
        sink = TopicSink("counts", serdes.json)
        assert self.sink(sink, "word") == (
            ("be", {"word": "be", "count": 3}),
            [Repartition, Sink],
        )

    def test_grouping_against_the_key_is_refused(self) -> None:
        sink = TopicSink("counts", serdes.json, key_field="word")
        with pytest.raises(TopologyError, match="groups by count, but its messages have the key"):
            self.sink(sink, "count")

    def test_a_field_that_is_not_emitted_is_refused(self) -> None:
        sink = TopicSink("counts", serdes.json, fields=["total"])
        with pytest.raises(TopologyError, match="writes field 'total', which 'count'"):
            self.sink(sink)

    def test_several_streams_are_merged(self) -> None:
        builder = words()
        builder.set_bolt("a", Pass()).shuffle_grouping("spout")
        builder.set_bolt("b", Pass()).shuffle_grouping("spout")
        both = builder.set_sink("out", TopicSink("words", serdes.string))
        both.shuffle_grouping("a").shuffle_grouping("b")
        (topology,) = builder.build().groups
        assert isinstance(topology.operator("out-records"), Merge)
        assert topology.operator("out").parents == ("out-records",)


def test_a_spout_by_offset_is_read_batch_by_batch() -> None:
    builder = TransactionTopologyBuilder("numbers", {"tuple.num.per.batch": 4})
    builder.set_spout("spout", Numbers(6))
    builder.set_bolt("end", End()).shuffle_grouping("spout")
    node = builder.build().groups[0].operator("spout")
    assert isinstance(node, Spout)
    assert node.batch_size == 0
    reader, found = node.component, Collected()
    reader.prepare(TaskContext("numbers", "spout", 0, 1))
    reader.init_state(None)
    reader.next_tuple(found)
    assert [values for _, _, values in found.emitted] == [[0], [1], [2], [3]]
    assert (found.barriers, reader.finish_batch()) == (1, 4)
    reader.next_tuple(found)
    reader.roll_back(4)
    found.emitted.clear()
    reader.next_tuple(found)
    assert [values for _, _, values in found.emitted] == [[4], [5]]
    assert reader.commit(None, reader.finish_batch()) == 6
    found.barriers = 0
    reader.next_tuple(found)
    assert (found.barriers, reader.finish_batch()) == (0, 6)


def test_names_do_not_depend_on_what_was_built_before() -> None:
    def built() -> str:
        builder = words()
        builder.set_bolt("count", Count()).fields_grouping("spout", "word")
        return builder.build().describe()

    assert built() == built()
