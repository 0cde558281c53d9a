"""Event time: watermarks per queue, per operator, and timers at the same place in any batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from headrace import serdes
from headrace.runtime import TopologyTestDriver
from headrace.runtime.chunk import NEVER
from headrace.runtime.event_time.watermarks import (
    BEFORE_ALL,
    OperatorWatermark,
    QueueWatermark,
    SourceWatermarks,
    Watermark,
)
from headrace.topology import Topology
from headrace.topology.operators.core import KeyBy, Sink, Source
from tests.runtime.tumbling import TumblingCount

START = datetime(2024, 1, 1, tzinfo=UTC)


def observe(
    clock: SourceWatermarks, times: list[int], first_mark: int = 0
) -> list[tuple[int, int]]:
    count = len(times)
    found, _ = clock.observe(
        ["t@b@0"],
        np.zeros(count, np.intp),
        np.array(times, np.int64),
        np.arange(count, dtype=np.int64) + first_mark,
    )
    return [(watermark.mark, watermark.time) for watermark in found]


def test_watermark_is_the_highest_time_less_the_lateness_and_never_falls() -> None:
    # RIP-58, "Completeness": width 2, times 5, 7, 6, 3 give watermarks 3, 5, 5, 5.
    clock = SourceWatermarks("s", 2_000, {}, step=1_000)
    assert observe(clock, [5_000, 7_000, 6_000, 3_000]) == [(0, 3_000), (1, 5_000)]
    assert clock.current == {"s/t@b@0": 5_000}


def test_a_record_is_late_below_the_watermark_of_its_queue_before_it() -> None:
    clock = SourceWatermarks("s", 2_000, {})
    times = np.array([5_000, 7_000, 6_000, 3_000], np.int64)
    _, below = clock.observe(["t@b@0"], np.zeros(4, np.intp), times, np.arange(4))
    assert (times < below).tolist() == [False, False, False, True]
    assert below.tolist() == [NEVER, 3_000, 5_000, 5_000]


def test_watermark_goes_on_from_the_last_commit() -> None:
    clock = SourceWatermarks("s", 0, {"s/t@b@0": 9_000}, step=1_000)
    assert observe(clock, [4_000]) == []
    assert observe(clock, [12_500], first_mark=1) == [(1, 12_500)]


def test_watermark_within_a_step_is_kept_but_not_passed_on() -> None:
    clock = SourceWatermarks("s", 0, {}, step=1_000)
    assert observe(clock, [1_000, 1_100, 1_200, 2_000, 2_300]) == [(0, 1_000), (3, 2_000)]
    assert clock.current == {"s/t@b@0": 2_300}
    assert observe(clock, [2_900, 3_000], first_mark=5) == [(6, 3_000)]


def test_a_queue_that_was_silent_counts_from_its_next_record() -> None:
    clock = SourceWatermarks("s", 0, {"s/t@b@0": 9_000}, step=1_000, idle=["s/t@b@0"])
    assert observe(clock, [4_000, 5_000]) == [(0, 9_000)]
    assert observe(clock, [6_000], first_mark=2) == []


def rises_of(operator: OperatorWatermark, *reports: tuple[int, str, int]) -> list[tuple[int, int]]:
    risen = operator.advance([QueueWatermark(*report) for report in reports])
    return [(rise.mark, rise.time) for rise in risen]


def test_operator_has_the_lowest_watermark_of_its_queues() -> None:
    operator = OperatorWatermark({"s/a": 0, "s/b": 0}, {})
    reports = [(1, "s/a", 10), (2, "s/b", 4), (3, "other/c", 99), (4, "s/b", 20)]
    assert rises_of(operator, *reports) == [(2, 4), (4, 10)]


def test_operator_goes_by_the_grid_and_by_what_delays_its_records() -> None:
    operator = OperatorWatermark({"s/a": 5}, {}, step=5)
    assert rises_of(operator, (1, "s/a", 12), (2, "s/a", 14), (3, "s/a", 15)) == [(1, 5), (3, 10)]


def test_a_silent_queue_holds_nothing_back_until_it_moves_and_time_never_falls() -> None:
    before = {"s/a": 50, "s/b": 10}
    operator = OperatorWatermark({"s/a": 0, "s/b": 0}, before, idle=["s/b"], floor=10)
    assert [(rise.mark, rise.time) for rise in operator.begin()] == [(BEFORE_ALL, 50)]
    assert operator.begin() == []
    assert rises_of(operator, (1, "s/b", 20), (2, "s/a", 60), (3, "s/b", 55)) == [(3, 55)]


def test_a_queue_never_seen_holds_everything_back() -> None:
    operator = OperatorWatermark({"s/a": 0, "s/b": 0}, {"s/a": 50})
    assert operator.begin() == []


def test_where_all_are_idle_the_furthest_counts() -> None:
    delays, both = {"s/a": 0, "s/b": 0, "s/c": 0}, ["s/a", "s/b", "s/c"]
    assert OperatorWatermark(delays, {}, idle=both).begin() == []
    operator = OperatorWatermark(delays, {"s/a": 50, "s/b": 20}, idle=both)
    assert operator.begin() == [Watermark(BEFORE_ALL, 50)]
    # Who comes back holds nothing back that has happened.
    assert rises_of(operator, (1, "s/b", 40), (2, "s/b", 60)) == [(2, 60)]


def windows() -> Topology:
    return Topology(
        "windows",
        (
            Source(
                name="in",
                parents=(),
                topic="events",
                deserializer=serdes.as_deserializer(serdes.string),
            ),
            KeyBy(name="key", parents=("in",), selector=str.lower, key_serde=serdes.key),
            TumblingCount(name="window", parents=("key",), size=10_000),
            Sink(
                name="out",
                parents=("window",),
                topic="counts",
                serializer=serdes.as_serializer(serdes.json),
            ),
        ),
    )


EVENTS = [("a", 1), ("A", 9), ("b", 10), ("a", 12), ("b", 11), ("c", 22), ("c", 35), ("d", 60)]


def fired(batches: list[list[tuple[str, int]]]) -> list[tuple[str, int, int]]:
    with TopologyTestDriver(windows(), start=START) as driver:
        events = driver.input("events", serdes.string)
        for batch in batches:
            with driver.batch():
                for text, seconds in batch:
                    events.send(text, time=START + timedelta(seconds=seconds))
        return [
            (record.key, record.value, int((record.time - START).total_seconds()))
            for record in driver.output("counts", serdes.json).read_all()
        ]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_windows_fire_once_with_the_same_result_however_batches_are_cut(size: int) -> None:
    batches = [EVENTS[at : at + size] for at in range(0, len(EVENTS), size)]
    assert sorted(fired(batches)) == [
        ("a", 1, 20),
        ("a", 2, 10),
        ("b", 2, 20),
        ("c", 1, 30),
        ("c", 1, 40),
    ]


def test_fired_windows_leave_no_state() -> None:
    with TopologyTestDriver(windows(), start=START) as driver:
        events = driver.input("events", serdes.string)
        for text, seconds in EVENTS:
            events.send(text, time=START + timedelta(seconds=seconds))
        assert len(driver.state("window")) == 1
