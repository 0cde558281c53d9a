"""Fences: where damage was, reads go on behind it and nothing that is gone is used again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.store import MessageStore, ReadStatus, StageKey
from headrace.store.entries import (
    HEADER_SIZE,
    NO_UNIT,
    EntryKind,
    Loss,
    fence_sizes,
    pack_header,
    pack_losses,
    parse_header,
)
from tests.store.samples import (
    append_of,
    body_of,
    chunk_of,
    log_bytes,
    log_files,
    section_of,
    settings,
    split,
)


def lay_fence(path: Path, first: int, end: int, losses: Sequence[Loss]) -> None:
    """Replace a stretch of the first segment by a fence, and forget what is derived."""
    payload = pack_losses(losses, end - first - HEADER_SIZE)
    header = pack_header(EntryKind.VOID, first, payload, synced=first, unit=NO_UNIT)
    with log_files(path)[0].open("r+b") as file:
        os.pwrite(file.fileno(), header + payload, first)
    (path / "checkpoint").unlink()


def entries(path: Path) -> list[tuple[int, int]]:
    """Where the entries of a log begin and end."""
    content, at, found = log_bytes(path), 0, []
    while at < len(content):
        entry = parse_header(content, at, at)
        assert entry is not None
        found.append((at, entry.end))
        at = entry.end
    return found


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A store of ten entries, a message and two in turn: offsets 0, 1-2, 3, 4-5 ..."""
    with MessageStore.open(tmp_path, settings(), clock=iter(range(1000, 10**6, 10)).__next__) as it:
        for number in range(10):
            it.append([append_of("lines", 0, [b"%d" % number] * (1 + number % 2))]).result()
    return tmp_path


def offsets(store: MessageStore, topic: str = "lines", max_count: int = 4) -> list[int]:
    found, offset = [], 0
    while (result := store.read(topic, 0, offset, max_count)).count:
        records = split(result.slices)
        assert len(records) == result.count <= max_count
        found += [int.from_bytes(record[20:28], "big") for record in records]
        offset = result.next_offset
    return found


def test_a_read_of_a_lost_offset_gives_the_next_larger_one(lines: Path) -> None:
    lay_fence(lines, entries(lines)[3][0], entries(lines)[4][1], [Loss("lines", 0, 4, 7)])
    for _ in range(2):  # replayed, then from the checkpoint
        with MessageStore.open(lines, settings()) as store:
            for offset in (4, 5, 6, 7):
                result = store.read("lines", 0, offset, 1)
                assert (result.count, result.next_offset) == (1, 8)
                assert body_of(split(result.slices)[0]) == b"5"
            assert offsets(store) == [0, 1, 2, 3, *range(7, 15)]


def test_a_fence_at_the_end_keeps_its_offsets_taken(lines: Path) -> None:
    lay_fence(lines, *entries(lines)[-1], [Loss("lines", 0, 13, 15)])
    with MessageStore.open(lines, settings()) as store:
        result = store.read("lines", 0, 13)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCH, 15)
        assert store.append([append_of("lines", 0, [b"new"])]).result()[0].first_offset == 15
        assert store.read("lines", 0, 13).count == 1


def test_times_and_cuts_pass_a_fence(lines: Path) -> None:
    lay_fence(lines, entries(lines)[3][0], entries(lines)[4][1], [Loss("lines", 0, 4, 7)])
    with MessageStore.open(lines, settings()) as store:
        assert store.store_time("lines", 0, 5) == store.store_time("lines", 0, 7)
        times = [store.store_time("lines", 0, offset) for offset in range(15)]
        assert times == sorted(times)
        assert store.offset_at("lines", 0, times[7]) in range(4, 8)
        begin, seen = 0, []
        while begin < 15:
            cut = store.cut({("lines", 0): begin}, limit=2)
            assert begin < cut.ends["lines", 0] <= begin + 2
            begin = cut.ends["lines", 0]
            seen.append(begin)
        assert seen[-1] == 15


def test_a_queue_of_which_all_is_lost_is_there_and_empty(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, settings()) as store:
        store.append([append_of("gone", 0, [b"x"] * 3)]).result()
        store.append([append_of("lines", 0, [b"y"])]).result()
    lay_fence(tmp_path, *entries(tmp_path)[0], [Loss("gone", 0, 0, 3)])
    with MessageStore.open(tmp_path, settings()) as store:
        assert offsets(store, "gone") == []
        assert store.offset_at("lines", 0, 0) == 0
        assert store.append([append_of("gone", 0, [b"z"])]).result()[0].first_offset == 3


def test_a_lost_delete_of_a_topic_holds(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, settings()) as store:
        store.append([append_of("lines", 0, [b"old"] * 3)]).result()
        store.delete_topic("lines").result()
        store.append([append_of("lines", 0, [b"new"])]).result()
    lay_fence(tmp_path, *entries(tmp_path)[1], [Loss.of_topic("lines")])
    with MessageStore.open(tmp_path, settings()) as store:
        assert offsets(store) == [0]
        assert body_of(split(store.read("lines", 0, 0).slices)[0]) == b"new"


@pytest.mark.parametrize("lost", [[0], [1], [2], [4], [0, 1], [3, 4], [0, 4], [1, 2, 3]])
@pytest.mark.parametrize("follower", ["append", "unit", "nothing"])
def test_what_is_left_of_a_unit_stays_readable(
    tmp_path: Path, lost: list[int], follower: str
) -> None:
    with MessageStore.open(tmp_path, settings()) as store:
        store.append([append_of("lines", 0, [b"before"])]).result()
        for unit in range(2 if follower == "unit" else 1):
            key = StageKey("job", 1, unit, 0, 0, 0)
            store.stage(key, 0, chunk_of(*(section_of("counts", q, [b"x"]) for q in range(3))))
            store.commit_unit([key]).result()
        if follower == "append":
            store.append([append_of("lines", 0, [b"after"])]).result()
    if follower == "nothing" and 4 not in lost:
        return  # a unit with its end is whole for recovery, whatever follows
    found = entries(tmp_path)[1:]
    for number in lost:  # BEGIN, three queues, END
        losses = [Loss("counts", number - 1, 0, 1)] if 0 < number < 4 else []
        lay_fence(tmp_path, *found[number], losses)
        (tmp_path / "checkpoint").touch()
    with MessageStore.open(tmp_path, settings()) as store:
        units = 2 if follower == "unit" else 1
        for queue in range(3):
            result = store.read("counts", queue, 0)
            assert result.max_offset == units
            assert result.count == units - (queue + 1 in lost)
        assert store.bounds("lines", 0).max_offset == (2 if follower == "append" else 1)


def test_fences_split_a_large_hole() -> None:
    for size in (44, 4 << 20, (4 << 20) + 43, (4 << 20) + 44, (4 << 20) + 45, 17 << 20):
        sizes = fence_sizes(size)
        assert sum(sizes) == size
        assert all(HEADER_SIZE <= each <= (4 << 20) + HEADER_SIZE for each in sizes)
    with pytest.raises(ValueError, match="less than the header"):
        fence_sizes(43)


def test_a_queue_keeps_its_birth_behind_a_fence(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, settings()) as store:
        store.append([append_of("other", 0, [b"o"])]).result()
        store.append([append_of("lines", 0, [b"x"])]).result()
        store.append([append_of("lines", 0, [b"y"])]).result()
    (_, _), (birth, end), _ = entries(tmp_path)
    lay_fence(tmp_path, 0, end, [Loss("lines", 0, 0, 1, birth), Loss("other", 0, 0, 1)])
    with MessageStore.open(tmp_path, settings()) as store:
        assert store._catalog.view(("lines", 0)).birth == birth
        assert store._catalog.view(("other", 0)).birth == 0


def test_a_fence_refuses_more_than_it_can_hold() -> None:
    with pytest.raises(ValueError, match="1 losses take 43 bytes, there are 42"):
        pack_losses([Loss("lines", 0, 0, 3)], 42)
