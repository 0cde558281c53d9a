"""What a test sent to its driver, on Spark too."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import serdes
from headrace.runtime import TopologyTestDriver
from headrace.spark import assert_same_on_spark
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.test_docs import DOCS, blocks

pytestmark = pytest.mark.spark

START = datetime(2025, 1, 1, tzinfo=UTC)


def counts(name: str = "replayed") -> Topology:
    builder = StreamBuilder(name)
    words = builder.source("lines", serdes.string).flat_map_values(str.split).key_by(str.lower)
    words.count(name="latest").to_stream().sink("latest", serdes.json)
    words.count(name="each", emit="each").to_stream().sink("each", serdes.json)
    return builder.build()


def test_the_same_comes_out_on_spark() -> None:
    with TopologyTestDriver(counts(), queues={"lines": 2}) as driver:
        first = driver.input("lines", serdes.string)
        second = driver.input("lines", serdes.string, queue=1)
        first.pipe(["to be", "or not"], start=START, step=timedelta(seconds=1))
        with driver.batch():
            second.send("to be", time=START)
            first.send("that is", time=START)
        assert_same_on_spark(driver, settings={"master": "local[2,4]"})
        # What was read before is compared all the same.
        driver.output("each", serdes.json).read_all()
        assert_same_on_spark(driver, batches="one", settings={"master": "local[2,4]"})


def test_what_differs_is_shown() -> None:
    builder = StreamBuilder("differs")
    processes = builder.source("in", serdes.string).map_values(lambda _: os.getpid())
    processes.key_by(lambda _: "k").max(emit="each").to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("in", serdes.string).send("a", time=START)
        with pytest.raises(
            AssertionError, match=rf"key 'k' of topic 'out':\n  driver b'{os.getpid()}'"
        ):
            assert_same_on_spark(driver, settings={"master": "local[2,4]"})


def test_the_example_of_the_page_runs() -> None:
    names: dict[str, Any] = {"__name__": "docs_example"}
    for block in blocks(DOCS / "guides/build/streams.md"):
        if block.language == "python":
            exec(block.text, names)
        if test := names.get("test_a_minute_of_orders"):
            test()
            return
    pytest.fail("the page has no such example")
