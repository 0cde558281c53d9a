"""What readers see."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings as effort, strategies as st

from headrace.errors import InvalidParameterError, MessageTooLargeError, NotFoundError
from headrace.store import MessageStore, ReadStatus
from tests.store.samples import all_records, append_of, bodies, body_of, settings, split


def numbered(first: int, last: int) -> list[bytes]:
    return [b"m%d" % number for number in range(first, last)]


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return MessageStore.open(tmp_path, settings(segment_size=2000, index_file_units=4))


@pytest.fixture(autouse=True)
def _closed(store: MessageStore) -> object:
    yield
    store.close()


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, ReadStatus.FOUND, 3),
        (2, ReadStatus.FOUND, 3),
        (3, ReadStatus.AT_END, 3),
        (4, ReadStatus.BEYOND, 4),
        (-1, ReadStatus.BELOW_MIN, -1),
    ],
)
def test_status_tells_where_the_offset_lies(
    store: MessageStore, offset: int, status: ReadStatus, next_offset: int
) -> None:
    store.append([append_of("lines", 1, numbered(0, 3))]).result()
    result = store.read("lines", 1, offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 3)


@pytest.mark.parametrize("offset", [0, 5])
def test_unknown_queue_is_empty(store: MessageStore, offset: int) -> None:
    result = store.read("lines", 0, offset)
    assert (result.status, result.count, result.slices) == (ReadStatus.EMPTY, 0, [])


def test_records_come_back_stamped_and_otherwise_as_they_were(store: MessageStore) -> None:
    store.store_host = ("127.0.0.1", 9876)
    before = bytes(append_of("lines", 1, [b"one", b"two"]).records.data)
    [result] = store.append([append_of("lines", 1, [b"one", b"two"])]).result()
    records = all_records(store, "lines", 1)
    cleared = b"".join(
        record[:20] + bytes(16) + record[36:56] + bytes(16) + record[72:] for record in records
    )
    assert cleared == b"".join(
        record[:20] + bytes(16) + record[36:56] + bytes(16) + record[72:]
        for record in split([before])
    )
    positions = [struct.unpack_from(">q", record, 28)[0] for record in records]
    assert positions[0] == result.first_position
    assert positions[1] == result.first_position + len(records[0])
    assert struct.unpack_from(">q", records[1], 56)[0] == result.timestamp


def test_queues_do_not_mix_and_offsets_count_from_zero(store: MessageStore) -> None:
    for number in range(30):
        topic, queue_id = ("lines", "words")[number % 2], number % 3
        [result] = store.append([append_of(topic, queue_id, [b"%d" % number])]).result()
        assert result.first_offset == number // 6
    assert bodies(store, "words", 1) == [b"1", b"7", b"13", b"19", b"25"]
    assert store.queues() == sorted((t, q) for t in ("lines", "words") for q in range(3))


def test_reads_span_segments_and_index_files(store: MessageStore) -> None:
    for number in range(100):
        store.append([append_of("lines", 0, numbered(number, number + 1))]).result()
    result = store.read("lines", 0, 0, 1000, 1 << 20)
    assert [body_of(record) for record in split(result.slices)] == numbered(0, 100)
    assert store.statistics().segments > 5


def test_saved_index_files_are_read_back(store: MessageStore, tmp_path: Path) -> None:
    for number in range(25):
        store.append([append_of("lines", 0, numbered(number, number + 1))]).result()
    store.close()
    with MessageStore.open(tmp_path, settings(index_file_units=4)) as again:
        assert again.statistics().recovery.checked_bytes == 0
        assert bodies(again, "lines", 0) == numbered(0, 25)
        assert (
            split(again.read("lines", 0, 3, 11, 1 << 20).slices)
            == (all_records(again, "lines", 0)[3:14])
        )


def test_limits_hold_but_one_message_always_comes(store: MessageStore) -> None:
    store.append([append_of("lines", 0, [b"x" * 100] * 10)]).result()
    size = len(all_records(store, "lines", 0)[0])
    assert store.read("lines", 0, 0, 3, 1 << 20).next_offset == 3
    assert store.read("lines", 0, 0, 100, 4 * size).next_offset == 4
    assert store.read("lines", 0, 0, 100, 4 * size + size - 1).next_offset == 4
    assert store.read("lines", 0, 0, 100, 1).next_offset == 1


def test_contiguous_records_are_one_slice(store: MessageStore) -> None:
    store.append([append_of("lines", 0, numbered(0, 10))]).result()
    assert len(store.read("lines", 0, 0).slices) == 1


def test_many_small_slices_are_joined(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "b", settings()) as store:
        futures = [store.append([append_of("lines", 0, [b"x"])]) for _ in range(600)]
        assert [future.result()[0].first_offset for future in futures] == list(range(600))
        result = store.read("lines", 0, 0, 600, 1 << 20)
        assert (len(result.slices), result.count) == (1, 600)


def test_slices_outlive_the_store(store: MessageStore) -> None:
    store.append([append_of("lines", 0, [b"kept"])]).result()
    slices = store.read("lines", 0, 0).slices
    store.close()
    assert body_of(split(slices)[0]) == b"kept"


def test_tags_choose_messages_and_offsets_go_on(store: MessageStore) -> None:
    for number in range(10):
        tag = b"TAGS\x01%s\x02" % (b"even" if number % 2 == 0 else b"odd")
        store.append([append_of("lines", 0, [b"%d" % number], tag)]).result()
    odd = 109871  # "odd".hashCode() in Java
    result = store.read("lines", 0, 0, 3, 1 << 20, frozenset({odd}))
    assert [body_of(record) for record in split(result.slices)] == [b"1", b"3", b"5"]
    # 6 is even, too: whether it is skipped now or then, nothing odd is passed over.
    assert result.next_offset in (6, 7)
    rest = store.read("lines", 0, result.next_offset, 3, 1 << 20, frozenset({odd}))
    assert [body_of(record) for record in split(rest.slices)] == [b"7", b"9"]
    assert rest.next_offset == 10
    none = store.read("lines", 0, 0, 3, 1 << 20, frozenset({1}))
    assert (none.status, none.count, none.next_offset) == (ReadStatus.NO_MATCH, 0, 10)


def test_a_record_is_found_by_its_position(store: MessageStore) -> None:
    [result] = store.append([append_of("lines", 0, [b"one"])]).result()
    assert body_of(store.read_at(result.first_position)) == b"one"
    for wrong in (-1, 0, result.first_position + 1, 1 << 40):
        with pytest.raises(NotFoundError):
            store.read_at(wrong)


def test_offsets_are_found_by_store_time(tmp_path: Path) -> None:
    times = iter([100, 100, 200, 300, 250])
    with MessageStore.open(tmp_path / "b", settings(), clock=lambda: next(times)) as store:
        for _ in range(5):
            store.append([append_of("lines", 0, [b"x"])]).result()
        found = [store.store_time("lines", 0, offset) for offset in range(5)]
        assert found == [100, 100, 200, 300, 300]  # a clock that goes back does not count
        at = [store.offset_at("lines", 0, time) for time in (0, 100, 101, 300, 301)]
        assert at == [0, 0, 2, 3, 5]
        upper = [store.offset_at("lines", 0, time, upper=True) for time in (0, 100, 299, 300, 999)]
        assert upper == [0, 1, 2, 4, 4]
        with pytest.raises(NotFoundError, match="offsets 0 to before 5, not 5"):
            store.store_time("lines", 0, 5)


def test_a_deleted_topic_is_gone_and_begins_again_at_zero(
    store: MessageStore, tmp_path: Path
) -> None:
    for queue_id in range(2):
        store.append([append_of("lines", queue_id, numbered(0, 9))]).result()
    store._writer.checkpoint().result()
    assert len(list((tmp_path / "index" / "lines").iterdir())) == 2
    store.append([append_of("words", 0, [b"kept"])]).result()
    assert store.delete_topic("lines").result() == 2
    assert store.queues() == [("words", 0)]
    assert store.read("lines", 0, 0).status is ReadStatus.EMPTY
    [again] = store.append([append_of("lines", 0, [b"new"])]).result()
    assert again.first_offset == 0
    store.close()
    for _ in range(2):
        with MessageStore.open(tmp_path, settings(index_file_units=4)) as opened:
            assert bodies(opened, "lines", 0) == [b"new"]
            assert bodies(opened, "words", 0) == [b"kept"]
    assert not (tmp_path / "index" / "lines").exists()


def test_what_cannot_be_stored_is_refused(store: MessageStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="no records"):
        store.append([append_of("lines", 0, [])])
    wrong = append_of("lines", 0, [b"x"])
    with pytest.raises(InvalidParameterError, match="queue \\('lines', 0\\)"):
        store.append([type(wrong)("lines", 1, wrong.records)])
    small = settings(max_message_size=1000)
    with (
        MessageStore.open(tmp_path / "b", small) as limited,
        pytest.raises(MessageTooLargeError, match=r"max_message_size .1000."),
    ):
        limited.append([append_of("lines", 0, [b"x" * 100_000])])


@effort(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=25),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
    st.integers(0, 60),
)
def test_a_cut_takes_every_message_before_its_position(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[int, int]],
    starts: list[int],
    limit: int,
) -> None:
    path = tmp_path_factory.mktemp("store")
    with MessageStore.open(path, settings(segment_size=4000, index_file_units=8)) as store:
        for queue_id, count in writes:
            store.append([append_of("lines", queue_id, [b"x"] * count)]).result()
        begins = {
            ("lines", queue_id): min(start, store.bounds("lines", queue_id).max_offset)
            for queue_id, start in enumerate(starts)
        }
        cut = store.cut(begins, limit)
        total = 0
        for (topic, queue_id), end in cut.ends.items():
            assert cut.latest[topic, queue_id] == store.bounds(topic, queue_id).max_offset
            positions = [
                struct.unpack_from(">q", record, 28)[0]
                for record in all_records(store, topic, queue_id)
            ]
            before = sum(position < cut.position for position in positions)
            assert end == max(before, begins[topic, queue_id])
            total += end - begins[topic, queue_id]
        available = sum(cut.latest[key] - begins[key] for key in begins)
        assert total == (min(limit, available) if limit else available)


def test_cuts_that_follow_each_other_take_all_once(store: MessageStore) -> None:
    for number in range(200):
        store.append([append_of("lines", number % 4, [b"x"] * (1 + number % 3))]).result()
    begins = {("lines", queue_id): 0 for queue_id in range(4)}
    positions = []
    while (cut := store.cut(begins, 33)).ends != begins:
        positions.append(cut.position)
        begins = cut.ends
    assert begins == cut.latest
    assert all(earlier < later for earlier, later in pairwise(positions))


@effort(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=40),
    st.sampled_from([0, 1, 5, 60]),
    st.integers(1, 4000),
)
def test_cuts_of_so_many_bytes_take_all_once_and_as_much_as_they_may(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[int, int]],
    limit: int,
    max_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("store")
    with MessageStore.open(path, settings(segment_size=8000, index_file_units=8)) as store:
        for number, (queue_id, size) in enumerate(writes):
            # What others write in between does not count.
            store.append([append_of("others", 0, [b"y" * (number % 50)])]).result()
            store.append([append_of("lines", queue_id, [b"x" * size])]).result()
        keys = [("lines", queue_id) for queue_id in range(4)]
        sizes = sorted(
            (struct.unpack_from(">q", record, 28)[0], len(record))
            for topic, queue_id in keys
            for record in all_records(store, topic, queue_id)
        )
        begins = dict.fromkeys(keys, 0)
        done = 0
        while (cut := store.cut(begins, limit, max_bytes)).ends != begins:
            count = sum(cut.ends[key] - begins[key] for key in keys)
            taken = sum(size for _, size in sizes[done : done + count])
            assert count == 1 or taken <= max_bytes
            assert not limit or count <= limit
            one_more = taken + sum(size for _, size in sizes[done + count : done + count + 1])
            assert count in (limit, len(sizes) - done) or one_more > max_bytes
            done += count
            begins = cut.ends
        assert done == len(sizes)
