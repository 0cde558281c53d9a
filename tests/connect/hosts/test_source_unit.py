"""What a source is ahead of the engine, cut, given, committed, taken back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.connect.columns import SOURCE_SCHEMA
from headrace.connect.hosts.source_unit import Ahead, LateRequestError, Polled

LARGE = 1 << 40


def polled(first: int, end: int, partition: str = "p") -> Polled:
    numbers = range(first, end)
    rows = pa.RecordBatch.from_pylist(
        [{"topic": "t", "value": str(number).encode()} for number in numbers], schema=SOURCE_SCHEMA
    )
    positions = [({"of": partition}, {"at": number + 1}) for number in numbers]
    return Polled(rows, range(1, len(rows) + 1), positions)


def values(ahead: Ahead, batch: int, records: int) -> list[int]:
    rows = ahead.give(batch, records, LARGE).rows()
    return [int(value) for value in rows["value"].to_pylist()]


def test_batch_of_columns_with_one_position_is_not_cut() -> None:
    ahead = Ahead(100, LARGE)
    whole = polled(0, 10)
    ahead.add(Polled(whole.rows, [10], [({}, {"at": 10})]), 0)
    ahead.add(polled(10, 12), 0)
    assert values(ahead, 1, 3) == list(range(10))
    assert ahead.give(1, 3, LARGE).positions() == [({}, {"at": 10})]
    assert values(ahead, 2, 3) == [10, 11]


def test_batch_that_does_not_fit_any_more_waits_for_the_next() -> None:
    ahead = Ahead(100, LARGE)
    ahead.add(polled(0, 2), 0)
    whole = polled(2, 12)
    ahead.add(Polled(whole.rows, [10], [({}, {"at": 12})]), 0)
    assert values(ahead, 1, 5) == [0, 1]
    assert values(ahead, 2, 5) == list(range(2, 12))


def test_records_that_were_dropped_move_the_position() -> None:
    ahead = Ahead(100, LARGE)
    kept = polled(0, 1)
    dropped = [({"of": "p"}, {"at": number}) for number in (1, 2, 3)]
    ahead.add(Polled(kept.rows, [1, 1, 1], dropped), 0)
    batch = ahead.give(1, 10, LARGE)
    assert (batch.rows().num_rows, batch.positions()) == (1, [({"of": "p"}, {"at": 3})])


def test_batch_of_dropped_records_alone_is_worth_a_commit() -> None:
    ahead = Ahead(100, LARGE)
    ahead.add(Polled(polled(0, 0).rows, [0], [({"of": "p"}, {"at": 9})]), 0)
    assert ahead.await_any(0)
    assert ahead.give(1, 10, LARGE).positions() == [({"of": "p"}, {"at": 9})]


def test_who_asks_late_for_a_committed_batch_takes_no_records_of_the_next() -> None:
    ahead = Ahead(100, LARGE)
    ahead.add(polled(0, 6), 0)
    assert values(ahead, 1, 3) == [0, 1, 2]
    ahead.commit(1)
    with pytest.raises(LateRequestError, match="batch 1"):
        ahead.give(1, 3, LARGE)
    assert values(ahead, 2, 3) == [3, 4, 5]


def test_each_partition_has_its_last_position() -> None:
    ahead = Ahead(100, LARGE)
    for first, partition in ((0, "a"), (2, "b"), (4, "a")):
        ahead.add(polled(first, first + 2, partition), 0)
    positions = ahead.give(1, 100, LARGE).positions()
    assert sorted(positions, key=str) == [({"of": "a"}, {"at": 6}), ({"of": "b"}, {"at": 4})]


def test_bytes_bound_a_batch() -> None:
    ahead = Ahead(1000, LARGE)
    ahead.add(polled(0, 100), 0)
    given_rows = ahead.give(1, 1000, polled(0, 100).size // 4).rows()
    assert 0 < given_rows.num_rows <= 26


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["add", "give", "again", "commit", "rewind"]), max_size=30))
def test_nothing_is_lost_or_doubled_in_any_order(acts: list[str]) -> None:
    ahead = Ahead(10_000, LARGE)
    added = batch = 0
    committed: list[int] = []
    handed: dict[int, list[int]] = {}
    for act in acts:
        if act == "add":
            ahead.add(polled(added, added + 3), 0)
            added += 3
        elif act == "give":
            batch += 1
            handed[batch] = values(ahead, batch, 4)
        elif act == "again" and handed:
            assert values(ahead, batch, 1) == handed[batch]
        elif act == "commit" and handed:
            ahead.commit(first := min(handed))
            committed += handed.pop(first)
        elif act == "rewind":
            ahead.rewind()
            handed.clear()
    ahead.rewind()
    batch += 1
    assert committed + values(ahead, batch, LARGE) == list(range(added))
    assert (ahead.records, ahead.bytes) == (0, 0)
