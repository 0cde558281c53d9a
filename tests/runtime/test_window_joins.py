"""Joins by tumbling and hopping windows and by sessions, against models of the whole input."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given as drawn, settings, strategies as st

from headrace import hopping, session, sliding, tumbling
from headrace.errors import TopologyError
from headrace.runtime import TopologyTestDriver
from tests.runtime.meetings import (
    START,
    Event,
    both,
    counted,
    cut,
    cuts,
    ended,
    event_lists,
    feed,
    given,
    in_time,
    joined,
    ms,
    results,
)

KINDS = ["join", "left_join", "outer_join"]


def window_model(events: list[Event], kind: str, size: int, slide: int) -> Counter[str]:
    rows: list[tuple[Any, int]] = []
    groups: dict[Any, tuple[list[Event], list[Event]]] = defaultdict(lambda: ([], []))
    for event in in_time(events):
        # The start of the test lies on the grid of every window here.
        for start in range(event.time // slide * slide, event.time - size, -slide):
            groups[event.key, start][event.side == "right"].append(event)
    for (key, _), (lefts, rights) in groups.items():
        rows += [([key, a.value, b.value], max(a.time, b.time)) for a in lefts for b in rights]
        if not rights and kind != "join":
            rows += [([key, a.value, None], a.time) for a in lefts]
        if not lefts and kind == "outer_join":
            rows += [([key, None, b.value], b.time) for b in rights]
    return counted(rows)


@settings(max_examples=50, deadline=None)
@drawn(event_lists(), cuts, st.sampled_from(KINDS), st.sampled_from([1, 2, 5]), st.integers(1, 3))
def test_every_pair_of_a_window_and_every_lonely_record_once(
    events: list[Event], sizes: list[int], kind: str, overlap: int, partitions: int
) -> None:
    windows = hopping(ms(5000), ms(5000 // overlap))
    topology = joined(lambda left, right: getattr(left, kind)(right, both, window=windows))
    with TopologyTestDriver(topology, partitions=partitions, start=START) as driver:
        feed(driver, cut(ended(events), sizes))
        assert counted(given(driver)) == window_model(events, kind, 5000, 5000 // overlap)
        # The last record of each side lies in all of its windows.
        assert len(driver.state("join-left-right")) == 2 * overlap


def session_model(events: list[Event], kind: str, gap: int) -> Counter[str]:
    rows: list[tuple[Any, int]] = []
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(in_time(events), key=lambda event: event.time):
        by_key[event.key].append(event)
    for key, sorted_events in by_key.items():
        sessions: list[list[Event]] = []
        for event in sorted_events:
            if sessions and event.time - sessions[-1][-1].time <= gap:
                sessions[-1].append(event)
            else:
                sessions.append([event])
        for one in sessions:
            lefts = [event for event in one if event.side == "left"]
            rights = [event for event in one if event.side == "right"]
            rows += [([key, a.value, b.value], max(a.time, b.time)) for a in lefts for b in rights]
            if not rights and kind != "join":
                rows += [([key, a.value, None], one[-1].time) for a in lefts]
            if not lefts and kind == "outer_join":
                rows += [([key, None, b.value], one[-1].time) for b in rights]
    return counted(rows)


@settings(max_examples=50, deadline=None)
@drawn(event_lists(), cuts, st.sampled_from(KINDS), st.sampled_from([50, 700, 2500]))
def test_defect_16_sessions_of_both_sides_give_every_pair_once(
    events: list[Event], sizes: list[int], kind: str, gap: int
) -> None:
    topology = joined(lambda left, right: getattr(left, kind)(right, both, window=session(ms(gap))))
    with TopologyTestDriver(topology, start=START) as driver:
        feed(driver, cut(ended(events), sizes))
        assert counted(given(driver)) == session_model(events, kind, gap)
        # The sessions of the last records and their timers.
        assert len(driver.state("join-left-right")) == 4


@pytest.mark.parametrize("windows", [tumbling(ms(5000)), hopping(ms(6000), ms(2000))])
@settings(max_examples=15, deadline=None)
@drawn(events=event_lists(), sizes=cuts)
def test_results_do_not_depend_on_how_batches_are_cut(
    windows: Any, events: list[Event], sizes: list[int]
) -> None:
    topology = joined(lambda left, right: left.outer_join(right, both, window=windows))
    everything = ended(events)
    whole = results(topology, [everything], partitions=1)
    assert results(topology, cut(everything, sizes), partitions=1) == whole


def test_joins_of_windows_lose_nothing() -> None:
    def make(left: Any, right: Any) -> Any:
        first = left.left_join(right, lambda a, b: [a, b], window=tumbling(ms(10_000)))
        return first.left_join(right, both, window=tumbling(ms(10_000)), name="second")

    events = [Event("left", "k", 1, 100), Event("left", "m", 2, 0), Event("right", "m", 3, 5000)]
    found = counted(results(joined(make), cut(ended(events), [1])))
    assert found == counted([(["k", [1, None], None], 100), (["m", [2, 3], 3], 5000)])


def test_calendar_days_join_by_their_own_length() -> None:
    days = tumbling(timedelta(days=1), time_zone="Europe/Berlin")
    hour = 3_600_000
    events = [
        Event("left", "k", 1, 22 * hour),
        Event("right", "k", 2, 23 * hour),
        Event("left", "k", 3, 46 * hour),
        Event("left", "last", 0, 200 * hour),
        Event("right", "last!", 0, 200 * hour),
    ]
    topology = joined(lambda left, right: left.left_join(right, both, window=days))
    found = counted(results(topology, cut(events, [1])))
    assert found == counted([(["k", 1, None], 22 * hour), (["k", 3, 2], 46 * hour)])


def test_windows_that_no_join_has_are_refused() -> None:
    with pytest.raises(TopologyError, match="a join cannot use windows of the kind 'sliding"):
        joined(lambda left, right: left.join(right, both, window=sliding(ms(10))))
