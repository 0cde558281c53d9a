"""Mistakes in topologies are refused when they are built, with the user's line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import TopologyError, serdes
from headrace.topology import Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)
from tests.transactions.components import Count, End, KeyCount, Pass, Sorter, Words

HERE = Path(__file__).name


class Twice(Pass):
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "word")


class Numbered(Pass):
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare(1)  # type: ignore[arg-type]


class Failing(Pass):
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        raise KeyError("fields")


class HalfStateful(End):
    def init_state(self, state: Any) -> None:
        del state


class Forgetful:
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def prepare(self, context: Any) -> None: ...

    def next_tuple(self, collector: Any) -> None: ...

    def cleanup(self) -> None: ...


class Locked(StatefulBolt):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def init_state(self, state: Any) -> None:
        del state

    def execute(self, taken: Tuple, /) -> None:
        del taken

    def finish_batch(self) -> None: ...


def split(b: Any) -> Any:
    b.set_bolt("split", Pass()).shuffle_grouping("spout")
    return b


def sort(b: Any) -> Any:
    b.set_bolt("sort", Sorter()).shuffle_grouping("spout")
    return b


def two_keys(b: Any) -> None:
    sort(b)
    both = b.set_bolt("count", KeyCount())
    both.fields_grouping("spout", "word").fields_grouping("sort", "word", "length", stream="short")


def after_sink(b: Any) -> None:
    b.set_sink("out", TopicSink("out", serdes.string)).shuffle_grouping("spout")
    b.set_bolt("end", End()).shuffle_grouping("out")


def same_name(b: Any) -> None:
    split(b)
    split(b)


def taken_twice(b: Any) -> None:
    b.set_bolt("end", End()).shuffle_grouping("spout").all_grouping("spout")


Wrong = Callable[[Any], object]

MISTAKES: dict[str, tuple[Wrong, str]] = {
    "class-as-bolt": (lambda b: b.set_bolt("x", End), r"is the class End.*write End\(\.\.\.\)"),
    "class-as-spout": (lambda b: b.set_spout("x", Words), "is the class Words"),
    "no-bolt": (lambda b: b.set_bolt("x", "split"), "is a str, which has no execute"),
    "no-spout": (lambda b: b.set_spout("x", End()), "is a End, which has no next_tuple"),
    "no-replay": (
        lambda b: b.set_spout("x", Forgetful()),
        "cannot replay what it emitted: it has no init_state.*OffsetSpout.*JournalSpout",
    ),
    "half-stateful": (lambda b: b.set_bolt("x", HalfStateful()), "which has no finish_batch"),
    "sink-as-bolt": (lambda b: b.set_bolt("x", TopicSink("t", serdes.string)), "set_sink"),
    "bolt-as-sink": (lambda b: b.set_sink("x", End()), r"give a TopicSink\(topic, serializer\)"),
    "parallelism-0": (lambda b: b.set_bolt("x", End(), 0), "parallelism=0.*at least 1"),
    "spout-parallelism-0": (lambda b: b.set_spout("x", Words(), 0), "parallelism=0"),
    "parallelism-text": (lambda b: b.set_bolt("x", End(), "2"), "parallelism='2'"),
    "topic-parallelism": (
        lambda b: b.set_spout("x", TopicSpout("t", serdes.string), 2),
        "the queues of a topic decide",
    ),
    "bad-name": (lambda b: b.set_bolt("a b", End()), "the operator name 'a b'"),
    "same-name": (same_name, "two components have the name 'split'"),
    "unknown-source": (
        lambda b: b.set_bolt("x", End()).shuffle_grouping("spuot"),
        "'spuot', which nobody added.*did you mean 'spout'",
    ),
    "unknown-stream": (
        lambda b: sort(b).set_bolt("x", End()).shuffle_grouping("sort", "shirt"),
        "stream 'shirt' of 'sort'.*did you mean 'short'",
    ),
    "unknown-field": (
        lambda b: b.set_bolt("x", Count()).fields_grouping("spout", "wrod"),
        "field 'wrod', which 'spout' does not have.*did you mean 'word'",
    ),
    "no-field": (
        lambda b: b.set_bolt("x", Count()).fields_grouping("spout"),
        "name at least one field",
    ),
    "field-twice": (
        lambda b: b.set_bolt("x", Count()).fields_grouping("spout", "word", "word"),
        "and each once",
    ),
    "fields-in-a-list": (
        lambda b: b.set_bolt("x", Count()).fields_grouping("spout", ["word"]),
        "name at least one field",
    ),
    "no-fields-declared": (
        lambda b: (
            b.set_bolt("e", End()).shuffle_grouping("spout"),
            b.set_bolt("x", End()).shuffle_grouping("e"),
        ),
        "'e', which declares no fields",
    ),
    "no-input": (lambda b: b.set_bolt("x", End()), "'x'.*takes no tuples"),
    "taken-twice": (taken_twice, "takes stream 'default' of 'spout' twice"),
    "after-a-sink": (after_sink, "'out', a topic that is written"),
    "direct-on-shuffled": (
        lambda b: b.set_bolt("x", End()).direct_grouping("spout"),
        "that stream is not declared direct=True",
    ),
    "shuffle-on-direct": (
        lambda b: sort(b).set_bolt("x", End()).shuffle_grouping("sort", "long"),
        "is direct: it wants direct_grouping",
    ),
    "custom-without-choose": (
        lambda b: b.set_bolt("x", End()).custom_grouping("spout", object()),
        r"has no method choose\(values, tasks\)",
    ),
    "keys-by-shuffle": (
        lambda b: b.set_bolt("x", KeyCount()).shuffle_grouping("spout"),
        "keeps values by key, and shuffle grouping gives no key",
    ),
    "keys-that-never-meet": (two_keys, "their keys never meet"),
    "field-declared-twice": (lambda b: b.set_bolt("x", Twice()), "a field twice: word, word"),
    "field-no-text": (lambda b: b.set_bolt("x", Numbered()), r"the fields \(1,\)"),
    "fields-fail": (lambda b: b.set_bolt("x", Failing()), "raised KeyError: 'fields'"),
    "fields-one-text": (lambda _: TopicSpout("t", serdes.json, fields="word"), "in a list"),
    "not-picklable": (
        lambda b: b.set_bolt("x", Locked()).fields_grouping("spout", "word"),
        "operator 'x'.*attribute 'lock' of its component cannot be pickled",
    ),
}


@pytest.mark.parametrize(("make", "message"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_refused_with_the_line(make: Wrong, message: str) -> None:
    builder = TransactionTopologyBuilder("job")
    builder.set_spout("spout", Words())

    def build() -> None:
        make(builder)
        if all(name == "spout" for name in builder._components):
            builder.set_bolt("other", End()).shuffle_grouping("spout")
        builder.build()

    with pytest.raises(TopologyError) as refused:
        build()
    text = " ".join(str(refused.value).split())
    assert re.search(message, text), text
    assert f"{HERE}:" in text


def test_a_spout_that_nobody_takes_is_refused() -> None:
    builder = TransactionTopologyBuilder("job")
    builder.set_spout("a", Words())
    builder.set_spout("b", Words())
    builder.set_bolt("end", End()).shuffle_grouping("a")
    with pytest.raises(TopologyError, match=rf"spout 'b' \(added at .*{HERE}:\d+\).*nobody takes"):
        builder.build()


def test_an_empty_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match="topology 'job' is empty"):
        TransactionTopologyBuilder("job").build()


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"change TransactionTopologyBuilder\(name\)"):
        TransactionTopologyBuilder("my job")


def test_an_abstract_bolt_cannot_be_made() -> None:
    class Lazy(Bolt):
        pass

    with pytest.raises(TypeError, match="execute"):
        Lazy()  # type: ignore[abstract]
