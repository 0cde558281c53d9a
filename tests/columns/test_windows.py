"""Windows over columns give what windows of functions give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    avg,
    count,
    count_distinct,
    hopping,
    max_,
    serdes,
    session,
    sum_,
    top,
    tumbling,
)
from headrace.columns import col

START = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Reading:
    sensor: str
    value: int


READINGS = serdes.json(Reading)
SECOND = timedelta(seconds=1)
WINDOWS: dict[str, Any] = {
    "tumbling": tumbling(10 * SECOND),
    "hopping": hopping(10 * SECOND, 4 * SECOND),
    "session": session(3 * SECOND),
}


def built(windows: Any) -> Any:
    builder = StreamBuilder("job")
    readings = builder.source("in", READINGS)
    by_columns = readings.where(col("value") != 7).group_by("sensor").window(windows, grace=SECOND)
    measured = by_columns.agg(
        n=count(),
        s=sum_("value"),
        most=max_("value"),
        mean=avg("value"),
        best=top(2, "value"),
        kinds=count_distinct("value"),
    )
    measured.sink("columns", serdes.plain)
    measured.late().sink("late", READINGS)
    by_key = readings.where(lambda one: one.value != 7).key_by(lambda one: one.sensor)
    by_key.window(windows, grace=SECOND).collect().to_stream(with_window=True).map_values(
        lambda found: {
            "n": len(found.value),
            "s": sum(one.value for one in found.value),
            "most": max(one.value for one in found.value),
            "best": sorted((one.value for one in found.value), reverse=True)[:2],
            "kinds": len({one.value for one in found.value}),
            "mean": sum(one.value for one in found.value) / len(found.value),
            "window_start": found.start,
            "window_end": found.end,
        }
    ).sink("lambdas", serdes.plain)
    return builder.build()


TOPOLOGIES = {name: built(windows) for name, windows in WINDOWS.items()}


@pytest.mark.parametrize("kind", WINDOWS)
@settings(deadline=None, max_examples=25)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.integers(0, 60),
                st.one_of(st.integers(0, 9), st.just(2**62)),
            ),
            min_size=1,
            max_size=8,
        ),
        max_size=5,
    )
)
def test_windows_agree_with_those_of_functions(
    kind: str, batches: list[list[tuple[str, int, int]]]
) -> None:
    with TopologyTestDriver(TOPOLOGIES[kind]) as driver:
        sent = driver.input("in", READINGS)
        for batch in [*batches, [("z", 1000, 1)]]:
            with driver.batch():
                for sensor, second, value in batch:
                    sent.send(Reading(sensor, value), time=START + second * SECOND)
        found = [r.value for r in driver.output("columns", serdes.plain).read_all()]
        reader = serdes.with_key(serdes.plain)
        expected = [
            {"sensor": r.key, **r.value} for r in driver.output("lambdas", reader).read_all()
        ]
    order: Callable[[Any], Any] = lambda row: (row["window_start"], row["sensor"])  # noqa: E731
    assert sorted(found, key=order) == sorted(expected, key=order)


def test_results_have_columns_again() -> None:
    builder = StreamBuilder("job")
    groups = builder.source("in", READINGS).group_by("sensor").window(WINDOWS["tumbling"])
    rows = groups.agg(n=count(), emit="update").to_stream()
    rows.where(col("n") > 1).select("sensor", "window_start").sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for sensor in "aab":
                driver.input("in", READINGS).send(Reading(sensor, 1), time=START)
        (row,) = driver.output("out", serdes.plain).read_all()
    assert row.value == {"sensor": "a", "window_start": START}


def test_what_cannot_work_is_refused() -> None:
    groups = StreamBuilder("job").source("in", READINGS).group_by("sensor")
    with pytest.raises(TopologyError, match="two columns have the name 'sensor'"):
        groups.window(WINDOWS["tumbling"]).agg(count().named("sensor"))
    updates = groups.agg(count()).to_stream().group_by("count")
    with pytest.raises(TopologyError, match="puts updates into windows"):
        updates.window(WINDOWS["tumbling"]).agg(count())
