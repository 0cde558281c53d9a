"""Tumbling and hopping windows: what they hold, when they fire, what they leave behind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    Accumulator,
    Stream,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
)
from headrace.runtime.windows.combining import assign, first_ends, panes
from headrace.topology import TimeWindows
from tests.runtime.windowing import (
    CUTS,
    EPOCH,
    Event,
    Fired,
    event_lists,
    fixed_windows,
    in_batches,
    ms,
    one_each,
    run,
    watch,
    with_lateness,
)

LATE_BY_RECORD = [
    Event("k", 1, time) for time in (1000, 9999, 10000, 12000, 12001, 10001, 10000, 22001)
]


class Mean(Accumulator[int, float]):
    """Merges, and changes what it is merged into."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, value: int) -> None:
        self.numbers.append(value)

    def merge(self, other: Mean) -> None:
        self.numbers += other.numbers

    def result(self) -> float:
        return sum(self.numbers) / len(self.numbers)


@pytest.mark.parametrize("cuts", [range(1, 8), [], [3], [4, 5]])
def test_late_is_decided_by_the_record_however_batches_are_cut(cuts: list[int]) -> None:
    outcome = run(
        lambda keyed: keyed.window(tumbling(ms(10_000))).count(),
        in_batches(LATE_BY_RECORD, cuts),
        lateness=2_000,
    )
    assert outcome.results == [
        Fired("k", 2, 0, 10_000, 9_999),
        Fired("k", 4, 10_000, 20_000, 12_001),
    ]
    assert outcome.late == [("k", 1, 10_000)]
    assert outcome.state == 1


@pytest.mark.parametrize("cuts", [range(1, 8), []])
def test_grace_takes_later_records_and_keeps_windows_open(cuts: list[int]) -> None:
    outcome = run(
        lambda keyed: keyed.window(tumbling(ms(10_000)), grace=ms(5_000)).count(),
        in_batches([*LATE_BY_RECORD, Event("k", 1, 27_000)], cuts),
        lateness=2_000,
    )
    assert outcome.results == [
        Fired("k", 2, 0, 10_000, 9_999),
        Fired("k", 5, 10_000, 20_000, 12_001),
    ]
    assert outcome.late == []


def test_a_queue_fires_no_windows_before_the_slowest_has_passed() -> None:
    # Defect 9: a queue fires another queue's windows.
    events = [Event("a", 1, 1_000, 0), Event("a", 1, 30_000, 0), Event("a", 1, 2_000, 1)]
    outcome = run(
        lambda keyed: keyed.window(tumbling(ms(10_000))).count(), one_each(events), queues=2
    )
    assert outcome == run(
        lambda keyed: keyed.window(tumbling(ms(10_000))).count(), [events], queues=2
    )
    assert (outcome.results, outcome.late) == ([], [])
    events.append(Event("a", 1, 10_000, 1))
    outcome = run(
        lambda keyed: keyed.window(tumbling(ms(10_000))).count(), one_each(events), queues=2
    )
    assert outcome.results == [Fired("a", 2, 0, 10_000, 2_000)]


@pytest.mark.parametrize("batched", [False, True])
def test_windows_of_windows_lose_nothing(batched: bool) -> None:
    # Defect 10: results of a window are late for the next one.
    builder = StreamBuilder("cascade")
    events: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    first = events.group_by_key().window(tumbling(ms(5_000))).sum().to_stream()
    other = first.key_by(lambda total: total % 2)
    other.window(tumbling(ms(10_000))).count().to_stream().sink("parity", serdes.json)
    again = first.group_by_key().window(tumbling(ms(10_000))).sum()
    again.to_stream().sink("sums", serdes.json)
    topology = with_lateness(builder.build(), 0)
    with TopologyTestDriver(topology) as driver:
        sent = driver.input("events", serdes.int)
        batches = [range(0, 61_000, 700)] if batched else [[t] for t in range(0, 61_000, 700)]
        for batch in batches:
            with driver.batch():
                for time in batch:
                    sent.send(1, key="k", time=EPOCH + ms(time))
        sums = driver.output("sums", serdes.json).read_all()
        parity = driver.output("parity", serdes.json).read_all()
        assert [driver.late(name).read_all() for name in (again.name, "count-events")] == [[], []]
    # All ten-second windows whose halves have both passed on a watermark lowered by the first.
    expected = [len(range(0, 61_000, 700)[i:j]) for i, j in _bounds(10_000, 700, 5)]
    assert [record.value for record in sums] == expected
    assert sum(record.value for record in parity) == 10


def _bounds(size: int, step: int, count: int) -> list[tuple[int, int]]:
    edges = [-(-size * n // step) for n in range(count + 1)]
    return list(itertools.pairwise(edges))


def test_a_key_may_hold_any_text() -> None:
    # Defects 12 and 13: a key with '&&' stops all windows, a null key the whole batch.
    builder = StreamBuilder("keys")
    events: Stream[Any, str] = builder.source("events", serdes.with_key(serdes.string, of=object))
    counts = events.group_by_key().window(tumbling(ms(10))).count()
    counts.to_stream().sink("counts", serdes.json)
    keys = ["a&&b", "", "\0", (1, "x"), 1, 1.0, True, "a" * 3_000]
    with TopologyTestDriver(with_lateness(builder.build(), 0)) as driver:
        sent = driver.input("events", serdes.string)
        with driver.batch():
            for key in [*keys, None]:
                sent.send("x", key=key, time=EPOCH)
        sent.send("end", key="end", time=EPOCH + ms(10))
        found = [
            (record.key, record.value) for record in driver.output("counts", serdes.json).read_all()
        ]
    assert sorted(map(repr, found)) == sorted(repr((key, 1)) for key in keys)


@pytest.mark.parametrize("batched", [False, True])
def test_sums_do_not_overflow_and_means_merge(batched: bool) -> None:
    # Defects 14 and 15.
    events = [Event("k", value, time) for time, value in enumerate([2**31 - 1, 1, 2**63, 4])]
    events.append(Event("k", 0, 100))
    batches = [events] if batched else one_each(events)
    sums = run(lambda keyed: keyed.window(tumbling(ms(10))).sum(), batches)
    assert [fired.value for fired in sums.results] == [2**31 + 2**63 + 4]
    small = [event._replace(value=event.time) for event in events]
    batches = [small] if batched else one_each(small)
    means = run(lambda keyed: keyed.window(hopping(ms(10), ms(5))).aggregate(Mean), batches)
    assert [(fired.start, fired.value) for fired in means.results] == [(-5, 1.5), (0, 1.5)]


def test_two_aggregates_of_one_stream_do_not_share_state() -> None:
    # Defects 3 and 1.
    builder = StreamBuilder("siblings")
    events: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    windows = events.group_by_key().window(tumbling(ms(10)))
    windows.count().to_stream().sink("counts", serdes.json)
    windows.sum().to_stream().sink("sums", serdes.json)
    windows.count(name="again").to_stream().sink("again", serdes.json)
    with TopologyTestDriver(with_lateness(builder.build(), 0)) as driver:
        sent = driver.input("events", serdes.int)
        for time in (1, 2, 20):
            sent.send(7, key="k", time=EPOCH + ms(time))
        found = {
            topic: [record.value for record in driver.output(topic, serdes.json).read_all()]
            for topic in ("counts", "sums", "again")
        }
    assert found == {"counts": [2], "sums": [14], "again": [2]}


def test_updates_give_the_latest_result_of_what_changed() -> None:
    events = [Event("k", 1, 1), Event("k", 2, 2), Event("j", 5, 3), Event("k", 1, 12)]
    each = run(lambda keyed: keyed.window(tumbling(ms(10))).sum(emit="update"), one_each(events))
    assert [(one.key, one.value, one.start) for one in each.results] == [
        ("k", 1, 0),
        ("k", 3, 0),
        ("j", 5, 0),
        ("k", 1, 10),
    ]
    whole = run(lambda keyed: keyed.window(tumbling(ms(10))).sum(emit="update"), [events])
    assert sorted((one.key, one.value, one.start) for one in whole.results) == [
        ("j", 5, 0),
        ("k", 1, 10),
        ("k", 3, 0),
    ]
    assert (whole.state, each.state) == (1, 1)


EVENTS = event_lists("abc")


@settings(deadline=None)
@given(
    EVENTS,
    CUTS,
    st.sampled_from([(10, 10, 0), (10, 10, 3), (10, 5, 0), (5, 2, 1), (7, 3, 0)]),
    st.sampled_from([0, 4, 20]),
    st.sampled_from([0, 6]),
    st.sampled_from(["sum", "reduce"]),
)
def test_windows_hold_what_a_look_at_the_whole_input_finds(
    events: list[Event],
    cuts: list[int],
    shape: tuple[int, int, int],
    lateness: int,
    grace: int,
    kind: str,
) -> None:
    size, slide, offset = shape
    windows = hopping(ms(size), ms(slide), offset=ms(offset))
    outcome = run(
        lambda keyed: (
            keyed.window(windows, grace=ms(grace)).sum()
            if kind == "sum"
            else keyed.window(windows, grace=ms(grace)).reduce(lambda one, two: one + two)
        ),
        in_batches(events, cuts),
        lateness=lateness,
        queues=2,
    )
    watched = watch(events, lateness=lateness, grace=grace, queues=2)
    expected = fixed_windows(watched, size=size, slide=slide, offset=offset, grace=grace)
    assert sorted(outcome.results) == expected
    assert sorted(outcome.late) == sorted(watched.late)


@settings(deadline=None)
@given(
    st.lists(st.integers(-(10**13), 10**13), max_size=20), st.integers(1, 50), st.integers(1, 50)
)
def test_panes_belong_to_the_same_windows(times: list[int], one: int, two: int) -> None:
    windows = TimeWindows(max(one, two), min(one, two), 3)
    moments = np.array(times, np.int64)
    of_times, of_panes = assign(windows, moments), assign(windows, panes(windows, moments))
    assert np.array_equal(of_times.starts, of_panes.starts)
    assert np.array_equal(of_times.indices, of_panes.indices)
    assert (of_times.starts <= moments[of_times.indices]).all()
    assert (of_times.ends > moments[of_times.indices]).all()
    for index, first in enumerate(first_ends(windows, moments).tolist()):
        assert first == of_times.ends[of_times.indices == index].min()


def test_days_of_a_calendar_follow_its_clock_changes() -> None:
    day = tumbling(timedelta(days=1), time_zone="Europe/Berlin")
    moments = [
        datetime(2024, 3, 30, 22, 59, tzinfo=UTC),
        datetime(2024, 3, 31, 21, 59, tzinfo=UTC),
        datetime(2024, 10, 27, 22, 59, tzinfo=UTC),
        datetime(1969, 12, 31, 22, 30, tzinfo=UTC),
    ]
    times = np.array([(moment - EPOCH) // ms(1) for moment in moments], np.int64)
    found = assign(day, times)
    hours = ((found.ends - found.starts) // 3_600_000).tolist()
    starts = [EPOCH + ms(start) for start in found.starts.tolist()]
    by_time = dict(zip(found.indices.tolist(), zip(starts, hours, strict=True), strict=True))
    assert by_time == {
        0: (datetime(2024, 3, 29, 23, tzinfo=UTC), 24),
        1: (datetime(2024, 3, 30, 23, tzinfo=UTC), 23),
        2: (datetime(2024, 10, 26, 22, tzinfo=UTC), 25),
        3: (datetime(1969, 12, 30, 23, tzinfo=UTC), 24),
    }
    assert found.ends[found.indices == 1].tolist() == [
        (datetime(2024, 3, 31, 22, tzinfo=UTC) - EPOCH) // ms(1)
    ]


@settings(deadline=None)
@given(
    st.lists(st.integers(-10 * 365 * 24 * 4, 65 * 365 * 24 * 4), max_size=5),
    st.sampled_from(["Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]),
    st.sampled_from([(1, 1, 0), (7, 7, 4 * 24), (3, 1, 6)]),
)
def test_calendar_windows_hold_their_times(
    quarters: list[int], zone: str, shape: tuple[int, int, int]
) -> None:
    size, slide, offset = shape
    windows = hopping(
        timedelta(days=size),
        timedelta(days=slide),
        offset=timedelta(hours=offset),
        time_zone=zone,
    )
    times = np.array(quarters, np.int64) * 900_000 + 7
    found = assign(windows, times)
    assert (found.starts <= times[found.indices]).all()
    assert (found.ends > times[found.indices]).all()
    assert set(found.indices.tolist()) == set(range(len(times)))
    if size == slide:
        assert len(found.indices) == len(times)


def test_many_closed_windows_leave_nothing_behind() -> None:
    events = [Event(f"k{n % 7}", 1, n * 3) for n in range(3_000)]
    end = [Event("end", 1, 100_000)]
    outcome = run(
        lambda keyed: keyed.window(hopping(ms(20), ms(5)), grace=ms(3)).sum(),
        [*in_batches(events, range(0, 3_000, 250)), end],
    )
    assert sum(fired.value for fired in outcome.results) == 4 * 3_000
    assert outcome.state == 4, "the windows of the last record, and nothing else"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tumbling(ms(0)), "size"),
        (lambda: hopping(ms(5), ms(10)), "leave records out"),
        (lambda: tumbling(timedelta(microseconds=1_500)), "whole number"),
        (lambda: tumbling(timedelta(hours=6), time_zone="Europe/Berlin"), "whole days"),
        (lambda: tumbling(timedelta(days=1), time_zone="Europe/Atlantis"), "Atlantis"),
    ],
)
def test_windows_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


@pytest.mark.parametrize("shape", [tumbling(ms(10_000)), session(ms(3_000)), sliding(ms(3_000))])
@pytest.mark.parametrize("batched", [False, True])
def test_a_record_that_finds_its_window_fired_after_an_idle_timeout_is_late(
    shape: Any, *, batched: bool
) -> None:
    # The other queue was silent for too long, so nothing waited for it: not late by its own time.
    builder = StreamBuilder("idle")
    events: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    counts = events.group_by_key().window(shape).count()
    counts.to_stream().sink("counts", serdes.json)
    counts.late().sink("late", serdes.int)
    with TopologyTestDriver(with_lateness(builder.build(), 0), queues={"events": 2}) as driver:
        sent = driver.input("events", serdes.int)
        for time in (1_000, 50_000):
            sent.send(1, key="k", time=EPOCH + ms(time))
        assert driver.output("counts", serdes.json).is_empty()
        driver.advance_wall_clock(timedelta(seconds=11))
        sent.send(1, key="k", time=EPOCH + ms(50_001))
        assert driver.output("counts", serdes.json).read().value == 1
        other = driver.input("events", serdes.int, queue=1)
        with driver.batch() if batched else nullcontext():
            other.send(7, key="k", time=EPOCH + ms(2_000))
            other.send(8, key="k", time=EPOCH + ms(50_001))
            other.send(9, key="k", time=EPOCH + ms(60_000))
        assert [r.value for r in driver.output("late", serdes.int).read_all()] == [7]
        assert driver.counters["late"] == 1


@pytest.mark.parametrize("cuts", [[], [50], [25, 75], range(5, 100, 5)])
@pytest.mark.parametrize("numbers", [[1, -2], [2**62, 2**62], [-(2**70), 3]])
def test_sums_of_many_keys_do_not_depend_on_the_cut(
    cuts: Sequence[int], numbers: list[int]
) -> None:
    # So many keys that the store is asked for whole windows, over bounds of 64 bits.
    events = [
        Event(f"k{key}", numbers[time % 2], time)
        for time in (0, 3, 7, 12, 18, 25)
        for key in range(40)
    ]
    outcome = run(
        lambda keyed: keyed.window(hopping(ms(10), ms(5))).sum(),
        in_batches(events, [cut * len(events) // 100 for cut in cuts]),
    )
    expected: dict[tuple[str, int], int] = {}
    for event in events:
        for start in (event.time // 5 * 5, event.time // 5 * 5 - 5):
            if start + 10 <= 25:
                place = (event.key, start)
                expected[place] = expected.get(place, 0) + event.value
    assert {(one.key, one.start): one.value for one in outcome.results} == expected
    assert len(outcome.results) == len(expected)
    assert outcome.state == 2 * 40
