from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from headrace import StreamBuilder, TopologyError, serdes
from headrace.serdes import as_deserializer, as_serializer
from headrace.topology import MapValues, Operator, Origin, Sink, Source, Topology


def source(topic: str = "lines", name: str | None = None, line: int = 1, **more: Any) -> Source:
    return Source(
        name=name or f"source-{topic}",
        parents=(),
        origin=Origin("app.py", line),
        topic=topic,
        deserializer=as_deserializer(serdes.string),
        **more,
    )


def sink(topic: str = "out", parent: str = "source-lines", line: int = 9) -> Sink:
    return Sink(
        name=f"sink-{topic}",
        parents=(parent,),
        origin=Origin("app.py", line),
        topic=topic,
        serializer=as_serializer(serdes.string),
    )


def mapping(name: str, *parents: str, line: int = 5) -> MapValues:
    return MapValues(name=name, parents=parents, origin=Origin("app.py", line), function=str.upper)


def refused(*operators: Operator, job: str = "job") -> str:
    with pytest.raises(TopologyError) as caught:
        Topology(job, operators)
    assert caught.value.code == "topology"
    return str(caught.value)


def test_a_topology_that_can_work_is_taken() -> None:
    assert Topology("job", (source(), mapping("a", "source-lines"), sink(parent="a"))).sinks


def test_an_empty_topology_says_how_to_start() -> None:
    assert refused() == (
        "topology 'job' is empty\n  → start with builder.source(topic, deserializer)"
    )
    with pytest.raises(TopologyError, match="topology 'job' is empty"):
        StreamBuilder("job").build()


def test_two_operators_of_one_name_are_named_with_both_lines() -> None:
    operators = (source(), mapping("same", "source-lines", line=5), mapping("same", "same", line=7))
    assert refused(*operators) == (
        "two operators have the name 'same': map_values 'same' (made at app.py:5) and"
        " map_values 'same' (made at app.py:7)\n"
        "  → give one of them another name with name="
    )


def test_a_source_and_a_sink_on_one_topic_are_named_with_both_lines() -> None:
    assert refused(source(), sink("lines")) == (
        "sink 'sink-lines' (made at app.py:9) writes topic 'lines', which source 'source-lines'"
        " (made at app.py:1) reads: the job would feed itself without end\n"
        "  → write to another topic"
    )


def test_dead_letters_must_not_come_back_as_input() -> None:
    assert "writes topic 'lines'" in refused(source(on_error="topic:lines"), sink())


def test_an_operator_after_a_sink_is_named_with_both_lines() -> None:
    assert refused(source(), sink(), mapping("late", "sink-out", line=12)) == (
        "map_values 'late' (made at app.py:12) comes after sink 'sink-out' (made at app.py:9), but"
        " a sink has no output\n"
        "  → keep the stream in a variable and branch before the sink"
    )


def test_two_sources_of_one_topic_have_one_start() -> None:
    again = replace(source(name="again", line=2), start="latest")
    assert refused(source(line=1), again, sink(), sink("b", "again")) == (
        "source 'source-lines' (made at app.py:1) and source 'again' (made at app.py:2) read topic"
        " 'lines' from different starts: None and 'latest'\n"
        "  → give both the same start=, or use two jobs"
    )


def test_a_sink_into_a_topic_that_a_pattern_matches_is_refused() -> None:
    matching = replace(source(line=1), topic=re.compile("l.*"))
    assert "the job would feed itself" in refused(matching, sink("lost"))


def test_a_source_that_nothing_follows_is_refused() -> None:
    assert "source 'source-lines' (made at app.py:1) reads topic 'lines' for nothing" in refused(
        source()
    )


def test_a_topology_that_does_nothing_is_refused() -> None:
    assert refused(source(), mapping("a", "source-lines", line=5)) == (
        "topology 'job' has no sink: it ends with map_values 'a' (made at app.py:5), and nothing is"
        " written, kept or called\n"
        "  → end it with a sink, e.g. .sink(topic, serializer)"
    )


def test_all_that_is_wrong_is_told_at_once() -> None:
    again = replace(source(name="again", line=2), start="latest")
    told = refused(
        source(line=1, on_error="ignore"),
        again,
        mapping("same", "source-lines", line=5),
        mapping("same", "again", line=7),
        sink("lines", "same"),
        sink("job-commitTopic", "same", line=11),
    )
    first, *lines = told.splitlines()
    assert first == "topology 'job' cannot work, for 5 reasons:"
    parts = [line for line in lines if not line.startswith("    →")]
    wanted = [
        "source 'source-lines' (made at app.py:1) has on_error='ignore'",
        "two operators have the name 'same': map_values 'same' (made at app.py:5) and map_values",
        "sink 'sink-job-commitTopic' (made at app.py:11) uses topic 'job-commitTopic', which",
        "sink 'sink-lines' (made at app.py:9) writes topic 'lines', which source 'source-lines'",
        "source 'source-lines' (made at app.py:1) and source 'again' (made at app.py:2) read topic",
    ]
    for part, begin in zip(parts, wanted, strict=True):
        assert part.startswith(f"  {begin}")


def test_an_operator_needs_a_parent_that_stands_before_it() -> None:
    assert "is fed by 'b', which does not come before it" in refused(source(), mapping("a", "b"))
    assert "needs an operator that feeds it" in refused(source(), mapping("a"))


@pytest.mark.parametrize("topic", ["job-commitTopic", "job-count-lines-stateTopic"])
def test_the_topics_of_the_job_itself_are_not_for_users(topic: str) -> None:
    builder = StreamBuilder("job")
    counts = builder.source("lines", serdes.string).key_by(len).count()
    counts.to_stream().sink(topic, serdes.json)
    with pytest.raises(TopologyError, match=f"uses topic '{topic}', which belongs to the job"):
        builder.build()


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("", "is empty"),
        ("two words", "may hold only letters, digits"),
        ("tröpic", "may hold only letters, digits"),
        ("x" * 128, "has 128 characters"),
    ],
)
def test_topics_follow_the_brokers_rules(topic: str, problem: str) -> None:
    builder = StreamBuilder("job")
    builder.source("lines", serdes.string, name="lines").sink(topic, serdes.string, name="out")
    with pytest.raises(TopologyError, match=problem):
        builder.build()


@pytest.mark.parametrize("policy", ["ignore", "topic", ""])
def test_error_policies_are_checked(policy: str) -> None:
    assert f"has on_error={policy!r}" in refused(source(on_error=policy), sink())
    assert "'fail', 'skip' or 'topic:NAME'" in refused(source(on_error=policy), sink())


def test_a_dead_letter_topic_follows_the_brokers_rules() -> None:
    assert "the topic 'a b' of on_error" in refused(source(on_error="topic:a b"), sink())


def test_names_of_operators_become_topics() -> None:
    assert "operator name 'a b' (made at app.py:5) may hold" in refused(
        source(), mapping("a b", "source-lines")
    )


def test_a_state_topic_must_not_be_too_long() -> None:
    builder = StreamBuilder("j" * 60)
    builder.source("t" * 60, serdes.string).key_by(len).count()
    with pytest.raises(TopologyError, match=r"needs the state topic .* of 138 characters"):
        builder.build()
    builder = StreamBuilder("j" * 60)
    builder.source("t" * 60, serdes.string).key_by(len).count(name="count")
    assert builder.build().stateful
