"""Functions of tables and of their joins that raise: the operator's policy decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import StreamBuilder, Table, TopologyTestDriver, serdes
from headrace.errors import UserCodeError

Build = Callable[[Table[str, Any], Table[str, Any], Any], Table[str, Any]]


def share(value: Any) -> float:
    return 12 / float(value)


def joined(left: Any, right: Any) -> float:
    return (0 if left is None else share(left)) + (right or 0)


def refers(value: Any) -> str:
    return f"k{share(value):.0f}"


BUILDS: dict[str, Build] = {
    "map_values": lambda left, _, policy: left.map_values(share, name="op", on_error=policy),
    "where": lambda left, _, policy: left.where(share, name="op", on_error=policy),
    "join": lambda left, right, policy: left.join(right, joined, name="op", on_error=policy),
    "left_join": lambda left, right, policy: left.left_join(
        right, joined, name="op", on_error=policy
    ),
    "outer_join": lambda left, right, policy: left.outer_join(
        right, joined, name="op", on_error=policy
    ),
    "foreign_key": lambda left, right, policy: left.left_join(
        right, lambda row, _: row, foreign_key=refers, name="op", on_error=policy
    ),
    "joiner_by_foreign_key": lambda left, right, policy: left.left_join(
        right, joined, foreign_key=lambda _: "k1", name="op", on_error=policy
    ),
}


def driver_of(build: Build, policy: str) -> TopologyTestDriver:
    builder = StreamBuilder("job")
    left, right = builder.table("left", serdes.int), builder.table("right", serdes.int)
    build(left, right, policy).to_stream().sink("out", serdes.json)
    return TopologyTestDriver(builder.build())


def send(driver: TopologyTestDriver, rows: list[tuple[str, int]]) -> None:
    driver.input("right", serdes.int).send(1, key="k1")
    driver.input("right", serdes.int).send(1, key="k2")
    for key, value in rows:
        driver.input("left", serdes.int).send(value, key=key)


def latest(driver: TopologyTestDriver) -> dict[Any, Any]:
    return {r.key: r.value for r in driver.output("out", serdes.json).read_all()}


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("policy", ["skip", "topic:dead"])
def test_change_that_fails_is_left_out(name: str, policy: str) -> None:
    with driver_of(BUILDS[name], policy) as driver, driver_of(BUILDS[name], "fail") as good:
        send(driver, [("k1", 2), ("k1", 0), ("k2", 0), ("k2", 4)])
        send(good, [("k1", 2), ("k2", 4)])
        assert latest(driver) == latest(good) != {}
        what = "skipped" if policy == "skip" else "dead_lettered"
        assert driver.counters[what] == 2
        if policy != "skip":
            dead = driver.output("dead", serdes.int).read_all()
            assert [record.value for record in dead] == [0, 0]
            assert dead[0].headers["HEADRACE_DEAD_EXCEPTION"] == "ZeroDivisionError"


@pytest.mark.parametrize("name", BUILDS)
def test_change_that_fails_stops_the_job_by_default(name: str) -> None:
    with (
        driver_of(BUILDS[name], "fail") as driver,
        pytest.raises(UserCodeError, match="ZeroDivisionError"),
    ):
        send(driver, [("k1", 2), ("k1", 0)])


@pytest.mark.parametrize("kind", ["streams", "table"])
def test_policy_of_a_join_covers_the_functions_of_its_keys(kind: str) -> None:
    builder = StreamBuilder("job")
    left = builder.source("left", serdes.int)
    if kind == "streams":
        chain = left.join(builder.source("right", serdes.int))
        chain.left_key(refers).right_key(refers).apply(joined, on_error="skip").sink(
            "out", serdes.json
        )
    else:
        lookup = left.join(builder.table("right", serdes.int)).left_key(refers)
        lookup.apply(joined, on_error="skip").sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("right", serdes.int).send(12, key="k1")
        for value in (0, 12, 0):
            driver.input("left", serdes.int).send(value)
        assert [r.value for r in driver.output("out", serdes.json).read_all()] == [13.0]
        assert driver.counters["skipped"] == 2
