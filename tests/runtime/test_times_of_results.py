"""Times of results; times before 1970; days that clocks make longer or shorter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace import (
    StreamBuilder,
    TopologyTestDriver,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
)
from headrace.topology.windows import TimeWindows
from tests.runtime.windowing import EPOCH, ms

Sent = tuple[str, str | None, Any, int]
"""Topic, key, value and time, ms."""

Make = Callable[[StreamBuilder, Any], Any]
BERLIN = ZoneInfo("Europe/Berlin")


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def run(make: Make, sent: list[Sent]) -> list[tuple[Any, Any, int, dict[str, str]]]:
    """Give key, value, time and headers of each result; each record is a batch."""
    builder = StreamBuilder("times")
    serde = serdes.with_key(serdes.json(int), of=str)
    left = builder.source("left", serde, allowed_lateness=timedelta(0))
    make(builder, left).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build(), start=EPOCH) as driver:
        for topic, key, value, at in sent:
            driver.input(topic, serdes.json).send(value, key=key, time=EPOCH + ms(at))
        found = driver.output("out", serdes.plain).read_all()
        return [(r.key, r.value, (r.time - EPOCH) // ms(1), dict(r.headers)) for r in found]


def right_of(builder: StreamBuilder) -> Any:
    serde = serdes.with_key(serdes.json(int), of=str)
    return builder.source("right", serde, allowed_lateness=timedelta(0))


LOOKUPS: dict[str, Make] = {
    "table": lambda b, left: left.left_join(
        b.table("right", serdes.with_key(serdes.json(int), of=str)), pair
    ),
    "kept stream": lambda b, left: left.left_join(right_of(b).to_table(), pair),
    "global table": lambda b, left: left.left_join(
        b.global_table("right", serdes.with_key(serdes.json(int), of=str)),
        pair,
        left_key=lambda value: "k",
    ),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize("row_time", [100, 900])
def test_what_looks_up_keeps_its_own_time(lookup: str, row_time: int) -> None:
    found = run(LOOKUPS[lookup], [("right", "k", 7, row_time), ("left", "k", 1, 500)])
    assert [entry[:3] for entry in found] == [("k", [1, 7], 500)]


@pytest.mark.parametrize("first", ["left", "right"])
def test_a_row_of_two_tables_has_the_later_time(first: str) -> None:
    def make(builder: StreamBuilder, left: Any) -> Any:
        return left.to_table().outer_join(right_of(builder).to_table(), pair).to_stream()

    other = {"left": "right", "right": "left"}[first]
    found = run(make, [(first, "k", 1, 900), (other, "k", 1, 100)])
    assert [entry[2] for entry in found] == [900, 900]


@pytest.mark.parametrize(
    ("kind", "deleted", "times"),
    [
        ("join", "left", [900, 900]),
        ("join", "right", [900, 200]),
        ("left_join", "left", [100, 900, 900]),
        ("outer_join", "right", [100, 900, 200]),
    ],
)
def test_a_row_of_two_tables_ends_at_the_later_time(
    kind: str, deleted: str, times: list[int]
) -> None:
    rows = serdes.optional(serdes.json(int))
    builder = StreamBuilder("times")
    left, right = (
        builder.table(topic, serdes.with_key(rows, of=str)) for topic in ("left", "right")
    )
    getattr(left, kind)(right, pair).to_stream().sink("out", serdes.optional(serdes.plain))
    with TopologyTestDriver(builder.build(), start=EPOCH) as driver:
        for topic, value, at in (("left", 1, 100), ("right", 1, 900), (deleted, None, 200)):
            driver.input(topic, rows).send(value, key="k", time=EPOCH + ms(at))
        found = driver.output("out", serdes.optional(serdes.plain)).read_all()
    assert [(r.time - EPOCH) // ms(1) for r in found] == times


@pytest.mark.parametrize("first", ["left", "right"])
def test_last_values_that_meet_have_the_later_time_and_lonely_ones_their_own(first: str) -> None:
    def make(builder: StreamBuilder, left: Any) -> Any:
        return left.outer_join(right_of(builder)).apply(pair)

    other = {"left": "right", "right": "left"}[first]
    sent: list[Sent] = [(first, "k", 1, 900), (other, "k", 1, 100), (other, "m", 1, 50)]
    assert [entry[2] for entry in run(make, sent)] == [900, 900, 50]


BY_TIME: dict[str, Make] = {
    "tumbling": lambda b, s: s.group_by_key().window(tumbling(ms(1000))).sum().to_stream(),
    "offset": lambda b, s: (
        s.group_by_key().window(tumbling(ms(1000), offset=ms(300))).sum().to_stream()
    ),
    "hopping": lambda b, s: s.group_by_key().window(hopping(ms(1000), ms(400))).sum().to_stream(),
    "session": lambda b, s: s.group_by_key().window(session(ms(400))).sum().to_stream(),
    "sliding": lambda b, s: s.group_by_key().window(sliding(ms(1000))).sum().to_stream(),
    "interval join": lambda b, s: s.outer_join(right_of(b)).within(ms(700)).apply(pair),
    "window join": lambda b, s: s.outer_join(right_of(b)).window(tumbling(ms(1000))).apply(pair),
    "session join": lambda b, s: s.outer_join(right_of(b)).window(session(ms(400))).apply(pair),
}
MOMENTS = [0, 1, 999, 1000, 1001, 1399, 1400, 2200, 2999, 3000, 3401, 5000]
#: A multiple of every size and slide above.
FAR = 2_000 * 1_000_000


@pytest.mark.parametrize("shape", BY_TIME)
@pytest.mark.parametrize("shift", [-FAR, -4000, -2000])
def test_before_1970_everything_is_as_behind_it(shape: str, shift: int) -> None:
    def moved(by: int) -> list[tuple[Any, Any, int, list[int]]]:
        sent: list[Sent] = [("left", "k", n, at + by) for n, at in enumerate(MOMENTS)]
        if "join" in shape:
            sent += [("right", "k", -n, at + by) for n, at in enumerate(MOMENTS[::2])]
        sent += [(topic, "end", 0, 10**6 + by) for topic in ("left", "right")]
        if "join" not in shape:
            sent.pop()
        found = run(BY_TIME[shape], sent)
        bounds = ("window_start_time", "window_end_time")
        return [
            (key, value, time - by, [int(headers[b]) - by for b in bounds if b in headers])
            for key, value, time, headers in found
        ]

    assert len(moved(0)) > 3
    assert moved(shift) == moved(0)


def day_of(windows: TimeWindows, moment: datetime) -> tuple[datetime, datetime]:
    """Give the window of a moment as clocks in Berlin show its bounds."""
    make: Make = lambda b, s: s.group_by_key().window(windows).count().to_stream()  # noqa: E731
    at = (moment - EPOCH) // ms(1)
    end = at + 10 * 86_400_000
    (found, *_) = run(make, [("left", "k", 1, at), ("left", "end", 1, end)])
    start, stop = (
        (EPOCH + ms(int(found[3][bound]))).astimezone(BERLIN)
        for bound in ("window_start_time", "window_end_time")
    )
    return start, stop


@pytest.mark.parametrize(
    ("moment", "start", "hours"),
    [
        # Clocks go forward on the last Sunday in March, from 2 to 3, and back in October.
        (datetime(2024, 3, 31, 5, 59, tzinfo=BERLIN), datetime(2024, 3, 30, 6, tzinfo=BERLIN), 23),
        (datetime(2024, 3, 31, 6, 0, tzinfo=BERLIN), datetime(2024, 3, 31, 6, tzinfo=BERLIN), 24),
        (
            datetime(2024, 10, 27, 5, 59, tzinfo=BERLIN),
            datetime(2024, 10, 26, 6, tzinfo=BERLIN),
            25,
        ),
        (datetime(2024, 10, 27, 6, 0, tzinfo=BERLIN), datetime(2024, 10, 27, 6, tzinfo=BERLIN), 24),
    ],
)
def test_days_with_an_offset_begin_by_the_clock_on_the_wall(
    moment: datetime, start: datetime, hours: int
) -> None:
    windows = tumbling(timedelta(days=1), offset=timedelta(hours=6), time_zone="Europe/Berlin")
    found, stop = day_of(windows, moment.astimezone(UTC))
    assert found == start
    assert stop.hour == 6
    assert stop.astimezone(UTC) - found.astimezone(UTC) == timedelta(hours=hours)


def test_a_day_that_would_begin_in_a_skipped_hour_begins_where_the_hour_was() -> None:
    windows = tumbling(
        timedelta(days=1), offset=timedelta(hours=2, minutes=30), time_zone="Europe/Berlin"
    )
    before = day_of(windows, datetime(2024, 3, 31, 0, 59, tzinfo=UTC))
    behind = day_of(windows, datetime(2024, 3, 31, 1, 30, tzinfo=UTC))
    assert before[1] == behind[0]
    assert (behind[1].hour, behind[1].minute) == (2, 30)
