"""Updates of windows that feed another aggregate take the old value back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    Stream,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    count_window,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
)
from headrace.topology.windows import Windows
from tests.runtime.windowing import EPOCH, Event, in_batches, ms, with_lateness

SHAPES: list[Windows] = [
    tumbling(ms(10)),
    hopping(ms(10), ms(5)),
    session(ms(5)),
    sliding(ms(5)),
    count_window(3),
]


@settings(deadline=None)
@given(
    st.lists(
        st.builds(Event, st.sampled_from("ab"), st.integers(1, 5), st.integers(0, 60)), max_size=25
    ),
    st.lists(st.integers(0, 25), max_size=8),
    st.sampled_from(SHAPES),
)
def test_a_total_over_windows_holds_each_window_once(
    events: list[Event], cuts: list[int], shape: Windows
) -> None:
    builder = StreamBuilder("totals")
    source: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    updates = source.group_by_key().window(shape).sum(emit="update").to_stream()
    updates.key_by(lambda total: "all").sum(name="total").to_stream().sink("totals", serdes.json)
    updates.sink("updates", serdes.json)
    with TopologyTestDriver(with_lateness(builder.build(), 1_000)) as driver:
        sent = driver.input("events", serdes.int)
        for batch in in_batches(events, cuts):
            with driver.batch():
                for event in batch:
                    sent.send(event.value, key=event.key, time=EPOCH + ms(event.time))
        totals = driver.output("totals", serdes.json).read_all()
        final = final_values(driver, events, shape)
    assert (totals[-1].value if totals else 0) == final


def final_values(driver: TopologyTestDriver, events: list[Event], shape: Windows) -> int:
    """Add up the last value of every window that is still there at the end."""
    last: dict[tuple[str, str, str], int] = {}
    for record in driver.output("updates", serdes.json).read_all():
        bounds = (record.headers["window_start_time"], record.headers["window_end_time"])
        last[record.key, *bounds] = record.value
    if shape == session(ms(5)) or shape == count_window(3):
        # Windows that grow are given under other bounds: every record is in one of them.
        return sum(event.value for event in events)
    return sum(last.values())


@pytest.mark.parametrize("shape", SHAPES)
def test_windows_refuse_running_updates(shape: Any) -> None:
    builder = StreamBuilder("refused")
    source: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    counts = source.group_by_key().count().to_stream().group_by_key()
    counts.window(shape).sum().to_stream().sink("sums", serdes.json)
    with pytest.raises(TopologyError, match="emits updates"):
        builder.build()
