"""Sessions, sliding windows and count windows: what they hold, when they fire, what stays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    Accumulator,
    Stream,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    count_window,
    serdes,
    session,
    sliding,
    tumbling,
)
from tests.runtime.windowing import (
    CUTS,
    EPOCH,
    Event,
    Fired,
    Watched,
    event_lists,
    in_batches,
    ms,
    one_each,
    run,
    sessions,
    watch,
    with_lateness,
)

EVENTS = event_lists("ab")


def ones(key: str, *times: int) -> list[Event]:
    return [Event(key, 1, time) for time in times]


def counted(events: Sequence[Event], gap: int, lateness: int) -> list[Fired]:
    one_by_one, at_once = (
        run(lambda keyed: keyed.window(session(ms(gap))).count(), batches, lateness=lateness)
        for batches in (one_each(events), [events])
    )
    assert one_by_one == at_once
    return one_by_one.results


def test_a_gap_is_inclusive() -> None:
    assert counted(ones("A", 1000, 1005, 1011, 2000), 5, 0) == [
        Fired("A", 2, 1000, 1010, 1005),
        Fired("A", 1, 1011, 1016, 1011),
    ]


def test_sessions_of_keys_are_separate() -> None:
    # Defect 4: a session mixes keys.
    events = [*ones("A", 1000), *ones("B", 1002), *ones("A", 1004, 2000)]
    assert sorted(counted(events, 5, 0)) == [
        Fired("A", 2, 1000, 1009, 1004),
        Fired("B", 1, 1002, 1007, 1002),
    ]


def test_a_record_between_two_sessions_makes_them_one() -> None:
    # Defect 5: sessions do not merge.
    assert counted(ones("A", 1010, 1012, 1020, 1016, 2000), 5, 10) == [
        Fired("A", 4, 1010, 1025, 1020)
    ]


def test_a_session_grows_backwards() -> None:
    # Defect 5: an earlier record is discarded.
    assert counted(ones("A", 1010, 1008, 2000), 5, 10) == [Fired("A", 2, 1008, 1015, 1010)]


def test_a_session_fires_when_time_is_beyond_its_gap() -> None:
    # The first event after which each session may fire, however long the gap is.
    events = [*ones("a", 0), *ones("d", 0, 150_000), *ones("a", 300_000, 300_001)]
    session_of = session(ms(300_000))
    before = run(lambda keyed: keyed.window(session_of).count(), one_each(events[:-1]))
    assert before.results == []
    after = run(lambda keyed: keyed.window(session_of).count(), one_each(ones("a", 0, 300_001)))
    assert after.results == [Fired("a", 1, 0, 300_000, 0)]


def test_time_that_jumps_ahead_makes_nothing_else_late() -> None:
    # Defect 11: firing by idleness, or by one far record, poisons the watermark of other queues.
    events = [
        Event("a", 1, 1_000, 0),
        Event("a", 1, 1_003, 1),
        Event("b", 1, 900_000, 0),
        Event("a", 1, 1_006, 1),
        Event("a", 1, 2_000, 1),
    ]
    outcome = run(lambda keyed: keyed.window(session(ms(5))).count(), one_each(events), queues=2)
    assert (outcome.results, outcome.late) == ([Fired("a", 3, 1_000, 1_011, 1_006)], [])


@settings(deadline=None)
@given(EVENTS, CUTS, st.sampled_from([1, 5, 20]), st.sampled_from([0, 15]), st.sampled_from([0, 7]))
def test_sessions_hold_what_a_look_at_the_whole_input_finds(
    events: list[Event], cuts: list[int], gap: int, lateness: int, grace: int
) -> None:
    outcome = run(
        lambda keyed: keyed.window(session(ms(gap)), grace=ms(grace)).sum(),
        in_batches(events, cuts),
        lateness=lateness,
        queues=2,
    )
    watched = watch(events, lateness=lateness, grace=grace, queues=2)
    assert sorted(outcome.results) == sessions(watched, gap=gap, grace=grace)
    assert sorted(outcome.late) == sorted(watched.late)


@pytest.mark.parametrize("emit", ["close", "update"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_sliding_window_that_is_open_takes_records_whose_own_has_passed(
    emit: Any, *, batched: bool
) -> None:
    # The other queue was silent for too long; what it sends at last is not late by its own time.
    builder = StreamBuilder("idle")
    events: Stream[str, int] = builder.source("events", serdes.with_key(serdes.int))
    totals = events.group_by_key().window(sliding(ms(3_000))).sum(emit=emit)
    totals.to_stream().sink("totals", serdes.json)
    totals.late().sink("late", serdes.int)
    with TopologyTestDriver(with_lateness(builder.build(), 0), queues={"events": 2}) as driver:
        one, other = (driver.input("events", serdes.int, queue=queue) for queue in range(2))
        one.send(1, key="k", time=EPOCH + ms(50_000))
        driver.advance_wall_clock(timedelta(seconds=11))
        one.send(10, key="k", time=EPOCH + ms(50_001))
        with driver.batch() if batched else nullcontext():
            other.send(7, key="k", time=EPOCH + ms(47_001))
            other.send(100, key="k", time=EPOCH + ms(49_000))
            other.send(9, key="k", time=EPOCH + ms(47_000))
            for queue in (one, other):
                queue.send(0, key="end", time=EPOCH + ms(60_000))
        found = driver.output("totals", serdes.json).read_all()
        last = {r.headers["window_end_time"]: r.value for r in found if r.key == "k"}
        assert last == {"50000": 1, "50001": 118}
        assert [r.value for r in driver.output("late", serdes.int).read_all()] == [9]


def looks_back(watched: Watched, size: int, grace: int) -> list[Fired]:
    return sorted(
        Fired(
            key,
            sum(e.value for e in watched.live if e.key == key and time - size <= e.time <= time),
            time - size,
            time,
            time,
        )
        for key, time in {(event.key, event.time) for event in watched.live}
        if watched.reached is not None and time + grace < watched.reached
    )


@settings(deadline=None)
@given(EVENTS, CUTS, st.sampled_from([1, 5, 20]), st.sampled_from([0, 15]), st.sampled_from([0, 7]))
def test_sliding_windows_hold_what_a_look_at_the_whole_input_finds(
    events: list[Event], cuts: list[int], size: int, lateness: int, grace: int
) -> None:
    outcome = run(
        lambda keyed: keyed.window(sliding(ms(size)), grace=ms(grace)).sum(),
        in_batches(events, cuts),
        lateness=lateness,
        queues=2,
    )
    watched = watch(events, lateness=lateness, grace=grace, queues=2)
    assert sorted(outcome.results) == looks_back(watched, size, grace)
    assert sorted(outcome.late) == sorted(watched.late)


@settings(deadline=None)
@given(EVENTS, CUTS, st.integers(1, 4))
def test_count_windows_take_every_so_many_records_in_order(
    events: list[Event], cuts: list[int], size: int
) -> None:
    outcome = run(
        lambda keyed: keyed.window(count_window(size)).sum(name="count_window"),
        in_batches(events, cuts),
        queues=2,
    )
    for key in "ab":
        own = [event for event in events if event.key == key]
        groups = [own[at : at + size] for at in range(0, len(own) - size + 1, size)]
        assert [fired for fired in outcome.results if fired.key == key] == [
            Fired(
                key,
                sum(event.value for event in group),
                min(event.time for event in group),
                max(event.time for event in group),
                max(event.time for event in group),
            )
            for group in groups
        ]
    assert outcome.late == []


@settings(deadline=None)
@given(EVENTS, CUTS, st.sampled_from(["session", "sliding", "count"]))
def test_last_updates_are_the_results_at_the_close(
    events: list[Event], cuts: list[int], kind: str
) -> None:
    shape = {"session": session(ms(5)), "sliding": sliding(ms(5)), "count": count_window(3)}[kind]
    name = "count_window" if kind == "count" else "sums"
    closed, updated = (
        run(
            lambda keyed, emit=emit: keyed.window(shape).sum(name=name, emit=emit),  # type: ignore[misc]
            in_batches(events, cuts),
            lateness=20,
            queues=2,
        )
        for emit in ("close", "update")
    )
    last = {(one.key, one.start, one.end): one.value for one in updated.results}
    if kind != "count":
        for one in closed.results:
            assert last[one.key, one.start, one.end] == one.value
    assert closed.late == updated.late
    assert closed.state == updated.state


@pytest.mark.parametrize("shape", [session(ms(5)), sliding(ms(5))])
def test_many_closed_windows_leave_nothing_behind(shape: Any) -> None:
    events = [Event(f"k{n % 7}", 1, n * 3) for n in range(2_000)]
    outcome = run(
        lambda keyed: keyed.window(shape).count(),
        [*in_batches(events, range(0, 2_000, 250)), [Event("end", 1, 100_000)]],
    )
    assert len(outcome.results) == 2_000
    assert outcome.state == 2, "one entry and one timer, of the last record"


class Last(Accumulator[int, int]):
    """Cannot merge."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, value: int) -> None:
        self.value = value

    def result(self) -> int:
        return self.value


def test_sessions_need_accumulators_that_merge() -> None:
    events = StreamBuilder("job").source("events", serdes.with_key(serdes.int)).group_by_key()
    with pytest.raises(TopologyError, match="cannot merge"):
        events.window(session(ms(5))).aggregate(Last)
    events.window(tumbling(ms(5))).aggregate(Last)
    events.window(count_window(5)).aggregate(Last)


def test_nothing_is_late_for_windows_that_count() -> None:
    events = StreamBuilder("job").source("events", serdes.with_key(serdes.int)).group_by_key()
    with pytest.raises(TopologyError, match="nothing is late"):
        events.window(count_window(5)).count().late()
    with pytest.raises(TopologyError, match="counts records"):
        events.window(count_window(5), grace=ms(5)).count()
