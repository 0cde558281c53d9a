from __future__ import annotations

from hypothesis import given, strategies as st

from headrace.client import MessageQueue
from headrace.spark.rocketmq.source import ReadRange, share_out, split_ranges

sizes = st.lists(st.integers(0, 10_000_000), max_size=20)


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("lines", "broker-a", number) for number in range(count)]


@given(sizes, st.integers(1, 1_000_000))
def test_shares_use_the_limit_and_no_more(waiting: list[int], limit: int) -> None:
    backlogs = dict(zip(queues(len(waiting)), waiting, strict=True))
    shares = share_out(backlogs, limit)
    assert shares.keys() == backlogs.keys()
    assert all(0 <= shares[queue] <= backlogs[queue] for queue in backlogs)
    assert sum(shares.values()) == min(limit, sum(waiting))


@given(sizes, st.integers(20, 1_000_000))
def test_no_queue_starves(waiting: list[int], limit: int) -> None:
    backlogs = dict(zip(queues(len(waiting)), waiting, strict=True))
    shares = share_out(backlogs, limit)
    assert all(shares[queue] > 0 for queue, size in backlogs.items() if size)


@given(sizes, st.one_of(st.none(), st.integers(1, 100)))
def test_parts_cover_every_range_once(lengths: list[int], least: int | None) -> None:
    names = queues(len(lengths))
    ranges = [
        ReadRange(queue, 7, 7 + size) for queue, size in zip(names, lengths, strict=True) if size
    ]
    parts = split_ranges(ranges, least)
    assert all(len(part) > 0 for part in parts)
    for whole in ranges:
        mine = [part for part in parts if part.queue == whole.queue]
        assert [part.begin for part in mine] == [whole.begin, *(part.end for part in mine[:-1])]
        assert mine[-1].end == whole.end


def test_large_ranges_are_cut_into_more_parts() -> None:
    small, large = queues(2)
    parts = split_ranges([ReadRange(small, 0, 10), ReadRange(large, 0, 990)], 10)
    assert [part.queue for part in parts].count(small) == 1
    assert len(parts) == 11
