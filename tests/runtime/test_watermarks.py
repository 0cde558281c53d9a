"""Event time: watermarks per queue, per operator, and timers at the same place in any batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace import serdes
from headrace.runtime import TopologyTestDriver
from headrace.runtime.chunk import NEVER
from headrace.runtime.event_time.watermarks import (
    BEFORE_ALL,
    OperatorWatermark,
    QueueWatermark,
    SourceWatermarks,
    clock_times,
    pack_watermarks,
    task_watermarks,
    unpack_watermarks,
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


TOGETHER: dict[str, str] = {}
APART = {origin: origin for origin in ("s/a", "s/b", "s/c", "r/a", "r/b")}


def rises_of(
    reports: Sequence[tuple[int, str, int]],
    movers: Mapping[str, str],
    *,
    delays: Mapping[str, int] | None = None,
    origins: Sequence[str] = ("s/a", "s/b"),
    before: Mapping[str, int] | None = None,
    idle: Collection[str] = (),
    floor: int = NEVER,
    step: int = 1,
) -> list[tuple[int, int]]:
    """Give the rises of an operator's watermark in a batch whose tasks move these origins."""
    known = before or {}

    def mover(origin: str) -> str:
        return movers.get(origin, "")

    told = [
        watermark
        for task in sorted({*map(mover, origins)})
        for watermark in task_watermarks(
            [QueueWatermark(*report) for report in reports if mover(report[1]) == task],
            [origin for origin in origins if mover(origin) == task],
            known,
            idle,
            step,
        )
    ]
    clocks = clock_times(origins, known, idle, step, mover)
    operator = OperatorWatermark(delays or {"s": 0}, clocks, floor=floor, step=step)
    rises = [*operator.begin(), *operator.advance(unpack_watermarks([pack_watermarks(told)]))]
    assert operator.begin() == []
    return [(rise.mark, rise.time) for rise in rises]


@pytest.mark.parametrize("movers", [TOGETHER, APART])
def test_operator_has_the_lowest_watermark_of_its_queues(movers: dict[str, str]) -> None:
    reports = [(1, "s/a", 10), (2, "s/b", 4), (3, "other/c", 99), (4, "s/b", 20)]
    assert rises_of(reports, movers) == [(2, 4), (4, 10)]


@pytest.mark.parametrize("movers", [TOGETHER, APART])
def test_operator_goes_by_the_grid_and_by_what_delays_its_records(movers: dict[str, str]) -> None:
    reports = [(1, "s/a", 12), (2, "s/a", 14), (3, "s/a", 15)]
    found = rises_of(reports, movers, delays={"s": 5}, origins=["s/a"], step=5)
    assert found == [(1, 5), (3, 10)]


@pytest.mark.parametrize("movers", [TOGETHER, APART])
def test_a_silent_queue_holds_nothing_back_until_it_moves_and_time_never_falls(
    movers: dict[str, str],
) -> None:
    reports = [(1, "s/b", 20), (2, "s/a", 60), (3, "s/b", 55)]
    before = {"s/a": 50, "s/b": 10}
    found = rises_of(reports, movers, before=before, idle=["s/b"], floor=10)
    assert found == [(BEFORE_ALL, 50), (3, 55)]


@pytest.mark.parametrize("movers", [TOGETHER, APART])
def test_a_queue_never_seen_holds_everything_back(movers: dict[str, str]) -> None:
    assert rises_of([], movers, before={"s/a": 50}) == []
    assert rises_of([(7, "s/a", 60), (8, "s/b", 55)], movers, before={"s/a": 50}) == [(8, 55)]


@pytest.mark.parametrize("movers", [TOGETHER, APART])
def test_where_all_are_idle_the_furthest_counts(movers: dict[str, str]) -> None:
    origins = ["s/a", "s/b", "s/c"]
    assert rises_of([], movers, origins=origins, idle=origins) == []
    # Who comes back holds nothing back that has happened.
    found = rises_of(
        [(1, "s/b", 40), (2, "s/b", 60)],
        movers,
        origins=origins,
        before={"s/a": 50, "s/b": 20},
        idle=origins,
    )
    assert found == [(BEFORE_ALL, 50), (2, 60)]


_ORIGINS = st.sampled_from(list(APART))
_TIMES = st.integers(-30, 30)


@given(
    reports=st.lists(st.tuples(st.integers(0, 8), _ORIGINS, _TIMES), max_size=12),
    movers=st.dictionaries(_ORIGINS, st.sampled_from(["x", "y"])),
    before=st.dictionaries(_ORIGINS, _TIMES),
    idle=st.sets(_ORIGINS),
    delay=st.sampled_from([0, 5, 10]),
)
def test_it_makes_no_difference_which_task_moves_a_queue(
    reports: list[tuple[int, str, int]],
    movers: dict[str, str],
    before: dict[str, int],
    idle: set[str],
    delay: int,
) -> None:
    delays = {"s": 0, "r": delay}
    found = rises_of(
        reports, movers, delays=delays, origins=list(APART), before=before, idle=idle, step=5
    )
    times, waited, reached, expected = dict(before), set(APART) - idle, NEVER, []
    for mark in (BEFORE_ALL, *sorted({mark for mark, _, _ in reports})):
        for _, origin, time in sorted(report for report in reports if report[0] == mark):
            times[origin] = time
            waited.add(origin)
        shown = {o: (times[o] - delays[o[0]]) // 5 * 5 for o in APART if o in times}
        if waited:
            now = min(shown[o] for o in waited) if waited <= shown.keys() else NEVER
        else:
            now = max(shown.values(), default=NEVER)
        if now > reached:
            reached = now
            expected.append((mark, now))
    assert found == expected


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
