"""The offset map alone: fixed memory, exact answers, no crowding."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.store.compaction.data_file import KEY, KeyRows
from headrace.store.compaction.offset_map import DistinctKeys, OffsetMap, slots_for


def rows_of(numbers: list[int], first: int = 0) -> KeyRows:
    rows = np.zeros(len(numbers), KEY)
    rows["high"] = numbers
    rows["low"] = [number * 7919 + 1 for number in numbers]
    rows["offset"] = np.arange(first, first + len(numbers))
    return rows


@pytest.mark.parametrize("keys", [1, 3, 1000, 40_000])
def test_the_last_offset_of_every_key_is_found(keys: int) -> None:
    chance = random.Random(keys)
    numbers = [chance.randrange(1, keys + 1) for _ in range(3 * keys)]
    offsets = OffsetMap(slots_for(keys, 1 << 30))
    first, size = 0, 777
    while first < len(numbers):
        some = numbers[first : first + size]
        assert offsets.add(rows_of(some, first)) == len(some)
        first += size
    expected = {number: at for at, number in enumerate(numbers)}
    assert len(offsets) == len(expected)
    known = list(expected)
    assert offsets.latest(rows_of(known)).tolist() == [expected[number] for number in known]
    strangers = rows_of([keys + 1 + number for number in range(100)])
    assert offsets.latest(strangers).tolist() == [-1] * 100


@pytest.mark.parametrize("capacity", [1, 2, 99, 100])
def test_a_full_map_stops_at_the_first_record_that_does_not_fit(capacity: int) -> None:
    """RocketMQ's map refuses the 101st of 100 keys, and with it the whole compaction."""
    offsets = OffsetMap(1000, capacity)
    numbers = [number for number in range(1, capacity + 1) for _ in range(3)]
    numbers += [1, capacity, capacity + 1, 1, 2]
    assert offsets.add(rows_of(numbers)) == 3 * capacity + 2
    assert len(offsets) == capacity
    assert offsets.latest(rows_of([1]))[0] == 3 * capacity + (0 if capacity > 1 else 1)
    assert offsets.add(rows_of([capacity + 9])) == 0
    offsets.clear()
    assert len(offsets) == 0
    assert offsets.add(rows_of([capacity + 9])) == 1


@pytest.mark.parametrize("slots", [1, 2, 3, 17])
def test_a_tiny_map_always_takes_a_key_when_it_is_empty(slots: int) -> None:
    offsets = OffsetMap(slots)
    left = rows_of([chance % 40 + 1 for chance in range(200)])
    rounds = 0
    while len(left):
        covered = offsets.add(left)
        assert covered >= 1
        assert len(offsets) <= slots
        left = left[covered:]
        offsets.clear()
        rounds += 1
    assert rounds <= 200


def test_b15_digests_that_crowd_one_place_cost_no_more_than_others() -> None:
    """Where a key belongs is drawn for each map: no choice of digests makes long searches."""
    crowd = np.zeros(3000, KEY)
    crowd["high"] = 1 << 63
    crowd["low"] = np.arange(3000)
    crowd["offset"] = np.arange(3000)
    for _ in range(300):
        offsets = OffsetMap(slots_for(3000, 1 << 20))
        assert offsets.add(crowd) == 3000
        assert offsets.latest(crowd).tolist() == list(range(3000))


@pytest.mark.parametrize("high", [0, 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("low", [1, 1 << 63, (1 << 64) - 1])
def test_b15_extreme_digests_are_digests_like_others(high: int, low: int) -> None:
    rows = np.zeros(2, KEY)
    rows["high"], rows["low"], rows["offset"] = high, low, (0, (1 << 62))
    offsets = OffsetMap(64)
    assert offsets.add(rows) == 2
    assert offsets.latest(rows).tolist() == [1 << 62] * 2


def test_records_without_a_key_are_passed_over() -> None:
    rows = rows_of([0, 0, 5])
    rows["low"][:2] = 0
    offsets = OffsetMap(64, 1)
    assert offsets.add(rows) == 3
    assert offsets.latest(rows).tolist() == [-1, -1, 2]
    assert len(offsets) == 1


def test_memory_is_24_bytes_a_slot_and_bounded() -> None:
    assert OffsetMap(1000).nbytes == 24_000
    assert slots_for(10_000_000, 24_000) == 1000
    assert OffsetMap(slots_for(100_000, 1 << 30)).nbytes / 100_000 < 32


@pytest.mark.parametrize(("keys", "records"), [(10, 40), (5000, 20_000), (100_000, 400_000)])
def test_the_number_of_keys_is_estimated_from_a_sample(keys: int, records: int) -> None:
    numbers = np.random.default_rng(keys).integers(1, 1 << 63, (keys, 2), dtype=np.uint64)
    rows = np.zeros(records, KEY)
    chosen = np.arange(records) % keys
    rows["high"], rows["low"] = numbers[chosen, 0], numbers[chosen, 1]
    estimate = DistinctKeys.of((rows[at : at + 999] for at in range(0, records, 999)), records)
    assert keys * 0.97 <= estimate <= keys * 1.08
