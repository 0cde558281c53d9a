"""Silent origins and batches without data, decided from a commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import serdes
from headrace.protocol.transactions import CommitRecord, StagedPart, StateSummary
from headrace.runtime.control import Summary
from headrace.runtime.event_time.silence import (
    BatchTime,
    batch_time,
    committed_time,
    is_due,
    origins_of,
)
from headrace.topology import SelectTimestamp, Topology
from headrace.topology.operators.core import KeyBy, Operator, Sink, Source
from tests.runtime.tumbling import TumblingCount

A, B = "events@b@0", "events@b@1"
BOTH = (A, B)


def topology(*between: Operator, **source: Any) -> Topology:
    last = between[-1].name if between else "in"
    return Topology(
        "job",
        (
            Source(
                name="in",
                parents=(),
                topic="events",
                deserializer=serdes.as_deserializer(serdes.string),
                **source,
            ),
            *between,
            KeyBy(name="key", parents=(last,), selector=str.lower, key_serde=serdes.key),
            TumblingCount(name="window", parents=("key",), size=10),
            Sink(
                name="out",
                parents=("window",),
                topic="counts",
                serializer=serdes.as_serializer(serdes.json),
            ),
        ),
    )


def record(**fields: Any) -> CommitRecord:
    return CommitRecord(job="job", kind="commit", epoch=1, batch=3, **fields)


def holding(count: int) -> list[StateSummary]:
    return [
        StateSummary(
            store="window",
            partition=0,
            count=count,
            checksum=0,
            epoch=1,
            batch=3,
            attempt=0,
            end_offset=1,
        )
    ]


def time_at(
    clock: int, last: CommitRecord, unread: tuple[str, ...] = (), began: int = 0, **source: Any
) -> BatchTime:
    origins = origins_of(topology(**source).plan, BOTH, partitions=2)
    return batch_time(origins, last, unread, clock, began)


SEEN = {f"in/{A}": 1_000, f"in/{B}": 7_000}


@pytest.mark.parametrize(
    ("clock", "unread", "idle"),
    [
        (10_999, (), []),
        (11_000, (), [A]),
        (17_000, (), [A, B]),
        # What is in its queue and not yet read has not been silent.
        (17_000, (A,), [B]),
        (99_000, (A, B), []),
    ],
)
def test_a_queue_is_idle_after_its_timeout_unless_it_has_messages(
    clock: int, unread: tuple[str, ...], idle: list[str]
) -> None:
    found = time_at(clock, record(seen=SEEN), unread)
    assert found.idle == [f"in/{queue}" for queue in idle]
    assert found.seen == SEEN


def test_a_queue_never_seen_counts_from_the_first_plan() -> None:
    assert time_at(14_999, record(), began=5_000).idle == []
    assert time_at(15_000, record(), began=5_000).idle == [f"in/{A}", f"in/{B}"]
    assert time_at(14_999, record(), began=5_000).seen == {f"in/{A}": 5_000, f"in/{B}": 5_000}


def test_without_a_timeout_a_queue_is_waited_for_for_ever() -> None:
    assert time_at(10**9, record(), idle_timeout=None).idle == []
    assert time_at(1_500, record(), idle_timeout=timedelta(seconds=1)).idle == [
        f"in/{A}",
        f"in/{B}",
    ]


def test_the_wall_clock_goes_on_without_records_and_is_never_idle() -> None:
    found = time_at(50_000, record(watermarks={f"in/{A}": 60_000}), timestamp="wall")
    assert found.idle == []
    assert found.watermarks == {f"in/{A}": 60_000, f"in/{B}": 48_000}


def select(stage_one: bool) -> Topology:
    operator = SelectTimestamp(
        name="select", parents=("first",) if stage_one else ("in",), function=int
    )
    first = TumblingCount(name="first", parents=("in",), size=10)
    return topology(*([first] if stage_one else []), operator)


def test_a_clock_of_an_operator_is_per_queue_and_behind_a_shuffle_per_partition() -> None:
    before = {origin.name for origin in origins_of(select(stage_one=False).plan, BOTH, 2)}
    assert before == {f"in/{A}", f"in/{B}", f"select/{A}", f"select/{B}"}
    behind = {origin.name for origin in origins_of(select(stage_one=True).plan, BOTH, 2)}
    assert behind == {f"in/{A}", f"in/{B}", "select/0", "select/1"}


def test_behind_a_shuffle_silence_is_known_up_to_what_was_read() -> None:
    origins = list(origins_of(select(stage_one=True).plan, BOTH, 2))
    seen = {"select/0": 1_000, "select/1": 1_000}
    last = record(seen=seen, clock=5_000)
    assert "select/0" not in batch_time(origins, last, (A,), 11_000, 0).idle
    assert "select/0" in batch_time(origins, last, (), 11_000, 0).idle
    later = record(seen=seen, clock=11_000)
    assert "select/0" in batch_time(origins, later, (A,), 11_100, 0).idle


WATERMARKS = {f"in/{A}": 100, f"in/{B}": 40}


@pytest.mark.parametrize(
    ("clock", "held", "progress", "due"),
    [
        # Both are heard: the operator stands at the slower one.
        (5_000, 1, 40, False),
        # B is silent, so A alone counts, and the operator is behind it.
        (15_000, 1, 40, True),
        # It has been told: no second batch for the same.
        (15_000, 1, 100, False),
        # All are silent: it makes no difference which of them was the last.
        (99_000, 1, 40, True),
        (99_000, 1, 100, False),
        # The operator holds nothing that time could change.
        (15_000, 0, 40, False),
    ],
)
def test_a_batch_without_data_is_due_when_a_silent_queue_lets_time_go_on(
    clock: int, held: int, progress: int, due: bool
) -> None:
    last = record(
        seen={f"in/{A}": 10_000, f"in/{B}": 0},
        watermarks=WATERMARKS,
        progress={"window": progress},
        states=holding(held),
    )
    time = time_at(clock, last)
    assert is_due(topology().plan, time, last, clock) is due


def test_a_batch_without_data_is_due_by_a_timer_of_the_wall_clock() -> None:
    last = record(due=20_000)
    assert not is_due(topology().plan, time_at(19_999, last), last, 19_999)
    assert is_due(topology().plan, time_at(20_000, last), last, 20_000)


def test_windows_by_the_wall_clock_fire_without_records_while_there_are_any() -> None:
    plan = topology(timestamp="wall").plan
    for held, due in ((1, True), (0, False)):
        last = record(progress={"window": 100}, states=holding(held))
        assert is_due(plan, time_at(2_120, last, timestamp="wall"), last, 2_120) is due
    last = record(progress={"window": 100}, states=holding(1))
    assert not is_due(plan, time_at(2_105, last, timestamp="wall"), last, 2_105)


def summary(**fields: Any) -> Summary:
    part = StagedPart(stage=0, partition=0, attempt=0, chunks=0, records=0)
    return Summary(part=part, clock=9_000, **fields)


def test_the_commit_keeps_what_the_next_batch_must_know_of_time() -> None:
    last = record(
        watermarks={"in/a": 7, "in/b": 9}, progress={"window": 5}, seen={"gone": 1}, due=3
    )
    done = committed_time(
        last,
        [
            summary(seen={"in/a": 1_000, "in/b": 2_000}, watermarks={"in/a": 8}),
            summary(progress={"window": 6}, due=70),
            summary(progress={"window": 6}, due=60),
        ],
    )
    assert done.seen == {"in/a": 9_000, "in/b": 2_000}
    assert done.watermarks == {"in/a": 8, "in/b": 9}
    assert (done.progress, done.clock, done.due) == ({"window": 6}, 9_000, 60)
    assert committed_time(last, [summary(seen={})]).due is None
