from __future__ import annotations

import pickle
from typing import Any

from headrace import Processor, Stream, StreamBuilder, serdes, value_state
from headrace.topology import Shuffle, StagePlan, Topology


def build(*, job: str = "job", **sources: Any) -> Topology:
    builder = StreamBuilder(job)
    for topic, use in sources.items():
        use(builder.source(topic, serdes.string))
    return builder.build()


def stages(plan: StagePlan) -> list[list[str]]:
    return [[operator.name for operator in stage.operators] for stage in plan.stages]


def test_what_keeps_no_state_is_one_stage() -> None:
    plan = build(a=lambda s: s.key_by(len).where(len).sink("out", serdes.string)).plan
    assert stages(plan) == [["source-a", "key_by-a", "where-a", "sink-out"]]
    assert plan.shuffles == ()


def test_a_count_is_shuffled_to() -> None:
    plan = build(a=lambda s: s.key_by(len).count().to_stream().sink("out", serdes.json)).plan
    assert stages(plan) == [["source-a", "key_by-a"], ["count-a", "to_stream-a", "sink-out"]]
    assert plan.shuffles == (Shuffle("key_by-a", "count-a", 0, 1),)


def test_operators_between_key_by_and_count_keep_the_shuffle() -> None:
    plan = build(a=lambda s: s.key_by(len).where(len).map_values(len).peek(print).count()).plan
    assert stages(plan)[1] == ["count-a"]
    assert plan.shuffles == (Shuffle("peek-a", "count-a", 0, 1),)


def test_two_counts_by_other_keys_are_two_shuffles() -> None:
    plan = build(a=lambda s: s.key_by(len).count().to_stream().key_by(lambda n: n % 2).count()).plan
    assert stages(plan) == [
        ["source-a", "key_by-a"],
        ["count-a", "to_stream-a", "key_by-a-2"],
        ["count-a-2"],
    ]
    assert [(s.source_stage, s.target_stage) for s in plan.shuffles] == [(0, 1), (1, 2)]


def test_a_second_aggregate_by_the_same_key_needs_no_shuffle() -> None:
    plan = build(
        a=lambda s: s.key_by(len).count().to_stream().map_values(abs).group_by_key().sum()
    ).plan
    assert stages(plan)[1] == ["count-a", "to_stream-a", "map_values-a", "sum-a"]
    assert len(plan.shuffles) == 1


def test_map_loses_the_partition_of_the_key() -> None:
    plan = build(
        a=lambda s: (
            s.key_by(len)
            .count()
            .to_stream()
            .map(lambda key, value: (key, value))
            .group_by_key()
            .count()
        )
    ).plan
    assert [s.operator for s in plan.shuffles] == ["count-a", "count-a-2"]


def test_keys_of_messages_are_shuffled_too() -> None:
    builder = StreamBuilder("job")
    builder.source("a", serdes.with_key(serdes.int)).group_by_key().sum()
    assert builder.build().plan.shuffles == (Shuffle("source-a", "sum-a", 0, 1),)


def test_branches_share_what_stands_before_them() -> None:
    def use(stream: Stream[None, str]) -> None:
        stream.sink("copies", serdes.string)
        keyed = stream.key_by(len)
        keyed.count().to_stream().sink("counts", serdes.json)
        keyed.reduce(max).to_stream().sink("longest", serdes.string)

    plan = build(a=use).plan
    assert stages(plan) == [
        ["source-a", "sink-copies", "key_by-a"],
        ["count-a", "to_stream-a", "sink-counts", "reduce-a", "to_stream-a-2", "sink-longest"],
    ]
    assert [child.name for child in plan.children("key_by-a")] == ["count-a", "reduce-a"]
    assert [child.name for child in plan.children("sink-copies")] == []
    assert [s.operator for s in plan.shuffles] == ["count-a", "reduce-a"]


def test_several_sources_share_the_stages() -> None:
    plan = build(
        a=lambda s: s.key_by(len).count().to_stream().sink("x", serdes.json),
        b=lambda s: s.key_by(len).count().to_stream().key_by(abs).count(),
        c=lambda s: s.sink("y", serdes.string),
    ).plan
    assert stages(plan) == [
        ["source-a", "key_by-a", "source-b", "key_by-b", "source-c", "sink-y"],
        ["count-a", "to_stream-a", "sink-x", "count-b", "to_stream-b", "key_by-b-2"],
        ["count-b-2"],
    ]
    assert plan.stage_of("sink-y") == 0
    assert plan.stage_of("count-b-2") == 2


def test_a_topology_travels_with_its_plan() -> None:
    topology = build(a=lambda s: s.key_by(len).count())
    plan = topology.plan
    copy = pickle.loads(pickle.dumps(topology))
    assert copy.name == topology.name
    assert stages(copy.plan) == stages(plan)


def test_a_processor_with_state_is_shuffled_to() -> None:
    builder = StreamBuilder("job")
    source = builder.source("numbers", serdes.with_key(serdes.int))
    made: Any = source.process(Processor, states=[value_state("seen", serdes.int)])
    made.sink("out", serdes.int)
    plan = builder.build().plan
    assert [len(stage.operators) for stage in plan.stages] == [1, 2]
