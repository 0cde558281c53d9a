"""Aggregates on Spark: every kind in one job, running and of updates, whatever the batches are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import (
    StreamBuilder,
    Table,
    Topology,
    TopologyTestDriver,
    collect,
    count,
    count_distinct,
    max_,
    serdes,
    sum_,
)
from headrace.spark.transactions import assert_same_on_spark

pytestmark = pytest.mark.spark

START = datetime(2025, 1, 1, tzinfo=UTC)


def gathered() -> Topology:
    builder = StreamBuilder("gathered")
    words = builder.source("words", serdes.string).key_by(lambda word: word[0])
    tables: dict[str, Table[str, Any]] = {
        "distinct": words.count_distinct(),
        "estimate": words.count_distinct(approximate=True),
        "avg": words.avg(len),
        "min": words.min(len),
        "max": words.max(),
        "top": words.top(2, len),
        "list": words.collect(distinct=True, limit=3),
        "row": words.agg(
            count(),
            letters=sum_(len),
            longest=max_(len),
            sizes=count_distinct(len),
            words=collect(),
        ),
    }
    for topic, table in tables.items():
        table.to_stream(name=f"updates-{topic}").sink(topic, serdes.plain)
    # How many words have been seen so often: an update moves a word to another group.
    counts = builder.source("seen", serdes.string).key_by(lambda word: word).count()
    groups = counts.to_stream(name="counts").key_by(lambda count: count)
    groups.count(name="groups").to_stream(name="sizes").sink("sizes", serdes.plain)
    moved = groups.agg(n=count(), most=max_(), name="moved").to_stream(name="moves")
    moved.sink("moved", serdes.plain)
    return builder.build()


def test_every_kind_of_aggregate_does_on_spark_in_one_batch_what_the_driver_does_in_many() -> None:
    with TopologyTestDriver(gathered(), queues={"words": 2, "seen": 2}) as driver:
        for index, word in enumerate(["be", "to", "or", "bee", "not", "to", "beer", "oar", "bee"]):
            time = START + timedelta(seconds=index)
            driver.input("words", serdes.string, queue=index % 2).send(word, time=time)
            # Values of groups do not depend on batches; when they last changed does.
            driver.input("seen", serdes.string, queue=index % 2).send(word, time=START)
        assert driver.state("groups").all() == {1: 5, 2: 2}
        assert_same_on_spark(driver, batches="one", settings={"master": "local[2,4]"})
