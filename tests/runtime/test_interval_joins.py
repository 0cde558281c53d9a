"""Interval joins against a model that looks at the whole input."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given as drawn, settings, strategies as st

from headrace import serdes
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


def model(events: list[Event], kind: str, before: int, after: int) -> Counter[str]:
    """Every pair in the interval, and whoever is in none of them."""
    kept = in_time(events)
    lefts = [event for event in kept if event.side == "left"]
    rights = [event for event in kept if event.side == "right"]
    pairs = [
        (one, other)
        for one in lefts
        for other in rights
        if one.key == other.key and -before <= other.time - one.time <= after
    ]
    rows: list[tuple[Any, int]] = [
        ([one.key, one.value, other.value], max(one.time, other.time)) for one, other in pairs
    ]
    met = {event.value for pair in pairs for event in pair}
    if kind != "join":
        rows += [([e.key, e.value, None], e.time) for e in lefts if e.value not in met]
    if kind == "outer_join":
        rows += [([e.key, None, e.value], e.time) for e in rights if e.value not in met]
    return counted(rows)


@settings(max_examples=60, deadline=None)
@drawn(
    event_lists(),
    cuts,
    st.sampled_from(KINDS),
    st.sampled_from([(1000, 1000), (0, 3000), (5000, 0), (0, 0), (-500, 4000), (40, 50)]),
    st.integers(1, 3),
)
def test_every_pair_and_every_lonely_record_once(
    events: list[Event],
    sizes: list[int],
    kind: str,
    bounds: tuple[int, int],
    partitions: int,
) -> None:
    before, after = bounds
    within = (ms(before), ms(after))
    topology = joined(lambda left, right: getattr(left, kind)(right, both, within=within))
    with TopologyTestDriver(topology, partitions=partitions, start=START) as driver:
        feed(driver, cut(ended(events), sizes))
        assert counted(given(driver)) == model(events, kind, before, after)
        late = driver.late("join-left-right").read_all()
        assert len(late) == len(events) - len(in_time(events)) == driver.counters.get("late", 0)
        # Of each side, the last record and its timer.
        assert len(driver.state("join-left-right")) <= 4


@settings(max_examples=30, deadline=None)
@drawn(event_lists(), cuts, st.sampled_from(KINDS))
def test_results_do_not_depend_on_how_batches_are_cut(
    events: list[Event], sizes: list[int], kind: str
) -> None:
    topology = joined(lambda left, right: getattr(left, kind)(right, both, within=ms(2500)))
    everything = ended(events)
    whole = results(topology, [everything], partitions=1)
    assert results(topology, cut(everything, sizes), partitions=1) == whole


def test_bounds_belong_to_the_interval() -> None:
    topology = joined(lambda left, right: left.join(right, both, within=(ms(1000), ms(2000))))
    events = [
        Event("left", "k", 1, 10_000),
        *(Event("right", "k", time, time) for time in (8999, 9000, 12_000, 12_001)),
    ]
    assert [row[0][2] for row in results(topology, cut(events, [1]))] == [9000, 12_000]


def test_a_lonely_record_fires_when_event_time_is_beyond_its_interval() -> None:
    topology = joined(lambda left, right: left.left_join(right, both, within=ms(50)))
    moves = [Event(side, "other", 0, time) for time in (2050, 2051) for side in ("left", "right")]
    with TopologyTestDriver(topology, start=START) as driver:
        feed(driver, [[Event("left", "k", 1, 0)], moves[:2]])
        assert given(driver) == [(["other", 0, 0], 2050)]
        feed(driver, [moves[2:]])
        assert (["k", 1, None], 0) in given(driver)


def test_defect_6_a_left_record_is_given_also_when_the_right_side_moves_first() -> None:
    topology = joined(lambda left, right: left.left_join(right, both, within=ms(1000)))
    events = [
        Event("left", "k", 1, 1000),
        Event("right", "k", 8, 40_000),
        Event("left", "z", 9, 41_000),
    ]
    assert results(topology, cut(events, [1])) == [(["k", 1, None], 1000)]


def test_defect_7_every_value_of_a_side_is_kept() -> None:
    topology = joined(lambda left, right: left.join(right, both, within=ms(5000)))
    events = [
        Event("left", "k", 1, 1000),
        Event("left", "k", 2, 2000),
        Event("right", "k", 7, 3000),
    ]
    assert results(topology, cut(events, [1])) == [(["k", 1, 7], 3000), (["k", 2, 7], 3000)]


def test_grace_waits_for_late_records() -> None:
    topology = joined(
        lambda left, right: left.left_join(right, both, within=ms(1000), grace=ms(5000))
    )
    events = [
        Event("left", "k", 1, 10_000),
        Event("left", "z", 2, 15_000),
        Event("right", "z", 3, 15_000),
        Event("right", "k", 4, 9500),
        Event("right", "k", 5, 7500),
    ]
    with TopologyTestDriver(topology, start=START) as driver:
        feed(driver, cut(events, [1]))
        assert given(driver) == [(["z", 2, 3], 15_000), (["k", 1, 4], 10_000)]
        assert [record.value for record in driver.late("join-left-right").read_all()] == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_goes_when_its_time_is_up(kind: str) -> None:
    topology = joined(lambda left, right: getattr(left, kind)(right, both, within=ms(1000)))
    sides = ("left", "right")
    events = [Event(side, f"k{n}", n, n * 10) for n in range(2000) for side in sides]
    with TopologyTestDriver(topology, start=START) as driver:
        feed(driver, cut(events, [500]))
        # One second before and behind, the lateness, and the width of a bucket.
        assert len(driver.state("join-left-right")) < 2 * 3 * 600
        feed(driver, [ended([])])
        assert len(driver.state("join-left-right")) <= 4
        assert len(given(driver)) == 2000


def test_windows_of_joins_lose_nothing() -> None:
    def make(left: Any, right: Any) -> Any:
        first = left.left_join(right, lambda a, b: [a, b], within=ms(10_000))
        return first.left_join(right, both, within=ms(0), name="second")

    events = [
        Event("left", "k", 1, 0),
        Event("left", "m", 2, 0),
        Event("right", "m", 3, 5000),
        *ended([]),
    ]
    found = counted(results(joined(make), cut(events, [1])))
    assert found == counted([(["k", [1, None], None], 0), (["m", [2, 3], 3], 5000)])


def test_sides_are_written_with_their_own_serdes() -> None:
    topology = joined(
        lambda left, right: (
            left.map_values(str, serde=serdes.string)
            .join(right.map_values(int, serde=serdes.int))
            .within(ms(1000))
            .apply(both)
        )
    )
    events = [Event("left", "k", 1, 0), Event("right", "k", 2, 10)]
    assert results(topology, cut(events, [1])) == [(["k", "1", 2], 10)]


def test_late_records_of_both_sides_are_a_stream() -> None:
    def make(left: Any, right: Any) -> Any:
        return left.join(right, both, within=ms(1000)).late()

    events = [
        Event("left", "k", 1, 10_000),
        Event("left", "k", 2, 100),
        Event("right", "k", 3, 9000),
        Event("right", "k", 4, 200),
    ]
    assert results(joined(make), cut(events, [1])) == [(2, 100), (4, 200)]
    with pytest.raises(TopologyError, match="nothing is late for a join of last values"):
        joined(lambda left, right: left.join(right, both).late())
