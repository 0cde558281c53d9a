"""Records of which an expression cannot be computed: the operator's policy decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from headrace import StreamBuilder, TopologyTestDriver, count, serdes, sum_, tumbling
from headrace.columns import col
from headrace.errors import UserCodeError
from headrace.streams import Stream

MINUTE = timedelta(minutes=1)
GOOD = ["1", "2", "3", "5"]
LINES = ["1", "x", "2", "", "3", "4.5", "5"]

Build = Callable[[Stream[Any, Any], Any], Stream[Any, Any]]


@dataclass
class Line:
    """What the source reads."""

    text: str
    kind: str = "a"


NUMBER = col("text").cast("int")

BUILDS: dict[str, Build] = {
    "select": lambda lines, policy: lines.select(n=NUMBER, name="op", on_error=policy),
    "where": lambda lines, policy: lines.where(NUMBER > 0, name="op", on_error=policy),
    "group_by": lambda lines, policy: (
        lines.group_by(n=NUMBER, name="op", on_error=policy).agg(count()).to_stream()
    ),
    "agg": lambda lines, policy: (
        lines.group_by("kind").agg(n=sum_(NUMBER), name="op", on_error=policy).to_stream()
    ),
    "window_agg": lambda lines, policy: (
        lines.group_by("kind")
        .window(tumbling(MINUTE))
        .agg(n=sum_(NUMBER), emit="update", name="op", on_error=policy)
        .to_stream()
    ),
}


def driver_of(build: Build, policy: str) -> TopologyTestDriver:
    builder = StreamBuilder("job")
    lines = builder.source("lines", serdes.json(Line))
    build(lines, policy).sink("out", serdes.json)
    return TopologyTestDriver(builder.build())


def send(driver: TopologyTestDriver, lines: list[str]) -> None:
    with driver.batch():
        for line in lines:
            driver.input("lines", serdes.json).send({"text": line, "kind": "a"})


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    found = driver.output("out", serdes.json).read_all()
    return [(record.key, record.value) for record in found]


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("policy", ["skip", "topic:dead"])
def test_bad_records_are_left_out_and_the_others_lose_nothing(name: str, policy: str) -> None:
    with driver_of(BUILDS[name], policy) as driver, driver_of(BUILDS[name], "fail") as good:
        send(driver, LINES)
        send(good, GOOD)
        assert results(driver) == results(good) != []
        what = "skipped" if policy == "skip" else "dead_lettered"
        assert driver.counters[f"{what}:op"] == 3
        if policy != "skip":
            dead = driver.output("dead", serdes.json).read_all()
            assert [record.value["text"] for record in dead] == ["x", "", "4.5"]
            assert {record.headers["HEADRACE_DEAD_OPERATOR"] for record in dead} == {"op"}
            assert dead[0].headers["HEADRACE_DEAD_EXCEPTION"] == "ValueError"


@pytest.mark.parametrize("name", BUILDS)
def test_first_bad_record_stops_the_job_by_default(name: str) -> None:
    with driver_of(BUILDS[name], "fail") as driver:
        send(driver, GOOD)
        with pytest.raises(UserCodeError, match=r"operator 'op' failed .*offset 5.*ValueError"):
            send(driver, LINES)


def test_batch_of_bad_records_gives_nothing() -> None:
    with driver_of(BUILDS["select"], "skip") as driver:
        send(driver, ["x"] * 100)
        assert results(driver) == []
        assert driver.counters["skipped:op"] == 100


def test_policy_of_sql_is_that_of_its_operators() -> None:
    builder = StreamBuilder("job")
    lines = builder.source("lines", serdes.json(Line))
    text = "select kind, sum(cast(text as bigint)) as n from lines group by kind"
    builder.sql(text, lines=lines, on_error="skip").sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        send(driver, LINES)
        assert results(driver) == [("a", {"kind": "a", "n": 11})]
