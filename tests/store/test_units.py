"""Staged parts, and the units that make them visible."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import (
    InvalidParameterError,
    MessageTooLargeError,
    ProtocolError,
    StagedPartMissingError,
)
from headrace.protocol.transactions import StagedSection
from headrace.store import MessageStore, StageKey
from headrace.store.requests import AloneRequest
from tests.store.samples import append_of, bodies, chunk_of, log_bytes, section_of, settings


def key(partition: int, *, batch: int = 1, epoch: int = 1, attempt: int = 0) -> StageKey:
    return StageKey("count", epoch, batch, 1, partition, attempt)


@pytest.fixture
def store(tmp_path: Path) -> object:
    with MessageStore.open(tmp_path, settings()) as store:
        yield store


def test_staged_records_are_seen_only_after_the_commit(store: MessageStore) -> None:
    store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"a", b"b"])))
    assert store.staged(key(0)) == (1, 2)
    assert store.queues() == []
    result = store.commit_unit([key(0)], [append_of("commits", 0, [b"1"])]).result()
    assert result.first_offsets == {("counts", 0): 0, ("commits", 0): 0}
    assert result.position == store.statistics().end == store.statistics().synced
    assert bodies(store, "counts", 0) == [b"a", b"b"]
    assert bodies(store, "commits", 0) == [b"1"]


def test_sections_of_one_queue_are_merged_in_the_order_of_the_keys(store: MessageStore) -> None:
    store.append([append_of("counts", 0, [b"before"])]).result()
    store.stage(key(1), 1, chunk_of(section_of("counts", 0, [b"1b"])))
    store.stage(key(1), 0, chunk_of(section_of("counts", 0, [b"1a"]), section_of("x", 3, [b"x"])))
    store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"0a"]), section_of("y", 0, [])))
    result = store.commit_unit([key(1), key(0)]).result()
    assert bodies(store, "counts", 0) == [b"before", b"1a", b"1b", b"0a"]
    assert result.first_offsets == {("counts", 0): 1, ("x", 3): 0}
    assert len(store.read("counts", 0, 1).slices) == 1


def test_large_sections_become_several_entries(store: MessageStore) -> None:
    many = [b"%06d" % number + b"x" * 500_000 for number in range(20)]
    for chunk in range(2):
        part = many[chunk * 10 : chunk * 10 + 10]
        store.stage(key(0), chunk, chunk_of(section_of("counts", 0, part)))
    store.commit_unit([key(0)]).result()
    assert bodies(store, "counts", 0) == many


def test_a_unit_may_be_larger_than_a_segment(tmp_path: Path) -> None:
    small = settings(segment_size=1000, index_file_units=4)
    with MessageStore.open(tmp_path, small) as store:
        for queue_id in range(5):
            part = [b"%d" % number * 100 for number in range(9)]
            store.stage(key(queue_id), 0, chunk_of(section_of("counts", queue_id, part)))
        store.commit_unit([key(queue_id) for queue_id in range(5)]).result()
        assert store.statistics().segments > 4
        seen = {queue_id: bodies(store, "counts", queue_id) for queue_id in range(5)}
    with MessageStore.open(tmp_path, small) as store:
        assert {queue_id: bodies(store, "counts", queue_id) for queue_id in range(5)} == seen


def test_an_empty_unit_is_a_unit(store: MessageStore) -> None:
    store.stage(key(0), 0, b"")
    assert store.commit_unit([key(0)]).result().first_offsets == {}


def test_units_that_wait_together_are_synced_once(store: MessageStore) -> None:
    for partition in (0, 1, 3):
        store.stage(key(partition), 0, chunk_of(section_of("counts", 0, [b"%d" % partition])))
    before = store.statistics()
    with held_back(store):
        units = [store.commit_unit([key(partition)]) for partition in (0, 1)]
    assert [unit.result().first_offsets for unit in units] == [
        {("counts", 0): 0},
        {("counts", 0): 1},
    ]
    assert units[0].result().position < units[1].result().position
    after = store.statistics()
    assert (after.syncs - before.syncs, after.units - before.units) == (1, 2)
    # One that cannot be committed leaves the others alone, whatever was written before it.
    with held_back(store):
        first = store.commit_unit([key(3)])
        lost = store.commit_unit([key(0), key(2)])
        last = store.commit_unit([key(1)], [append_of("commits", 0, [b"1"])])
    with pytest.raises(StagedPartMissingError):
        lost.result()
    assert first.result().first_offsets == {("counts", 0): 2}
    assert last.result().first_offsets == {("counts", 0): 3, ("commits", 0): 0}
    assert bodies(store, "counts", 0) == [b"0", b"1", b"3", b"1"]


@contextmanager
def held_back(store: MessageStore) -> Iterator[None]:
    """Have requests wait until the block ends."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(10)

    store._writer.submit(AloneRequest(hold))
    assert begun.wait(10)
    yield
    go_on.set()


def test_a_repeated_chunk_changes_nothing(store: MessageStore, tmp_path: Path) -> None:
    body = chunk_of(section_of("counts", 0, [b"a"]))
    for _ in range(3):
        store.stage(key(0), 0, body)
    assert store.staged(key(0)) == (1, 1)
    with pytest.raises(InvalidParameterError, match="other content"):
        store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"b"])))


def test_a_missing_part_or_chunk_fails_the_commit_and_writes_nothing(
    store: MessageStore, tmp_path: Path
) -> None:
    store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"a"])))
    store.stage(key(1), 1, chunk_of(section_of("counts", 0, [b"b"])))
    for keys in ([key(0), key(1)], [key(0), key(2)]):
        with pytest.raises(StagedPartMissingError):
            store.commit_unit(keys).result()
    assert log_bytes(tmp_path) == b""
    assert store.commit_unit([key(0)]).result().first_offsets == {("counts", 0): 0}


def test_a_staged_file_that_vanished_fails_the_commit(store: MessageStore, tmp_path: Path) -> None:
    store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"a"])))
    store.stage(key(1), 0, chunk_of(section_of("counts", 1, [b"a"])))
    sorted((tmp_path / "staging" / "count").iterdir())[1].unlink()
    with pytest.raises(StagedPartMissingError):
        store.commit_unit([key(0), key(1)]).result()
    assert store.queues() == []
    assert log_bytes(tmp_path) == b""


def test_staged_bytes_that_changed_fail_the_commit_and_are_written_nowhere(
    store: MessageStore, tmp_path: Path
) -> None:
    store.stage(key(1), 0, chunk_of(section_of("counts", 1, [b"good"])))
    sections = [section_of("counts", 0, [b"a" * 50, b"b" * 50]), section_of("x", 0, [b"c" * 50])]
    store.stage(key(0), 0, chunk_of(*sections))
    path = min((tmp_path / "staging" / "count").iterdir())
    whole = path.read_bytes()
    wrong = []
    for letter in (b"a", b"b", b"c"):
        at = whole.index(letter * 50)
        for content in (whole[:at] + b"#" + whole[at + 1 :], whole[:at]):
            path.write_bytes(content)
            error = store.commit_unit([key(1), key(0)]).exception()
            if not isinstance(error, StagedPartMissingError) or "are not what" not in str(error):
                wrong.append((letter, len(content), error))
    assert wrong == []
    assert (log_bytes(tmp_path), store.queues()) == (b"", [])
    path.write_bytes(whole)
    store.commit_unit([key(1), key(0)]).result()
    assert bodies(store, "counts", 0) == [b"a" * 50, b"b" * 50]


@pytest.mark.parametrize("cut", [1, 5, 13, 20, 40, 100])
def test_a_malformed_chunk_is_refused(store: MessageStore, cut: int) -> None:
    body = chunk_of(section_of("counts", 0, [b"a" * 50]))
    with pytest.raises(ProtocolError):
        store.stage(key(0), 0, body[:-cut])
    assert store.staged(key(0)) == (0, 0)


def test_a_section_for_another_queue_is_refused(store: MessageStore) -> None:
    section = section_of("counts", 0, [b"a"])
    with pytest.raises(ProtocolError, match="names 1 records for queue"):
        store.stage(key(0), 0, chunk_of(type(section)("counts", 1, 1, section.records)))


@pytest.mark.parametrize("other", [("counts", 1), ("others", 0), ("other", 0)])
def test_a_section_that_mixes_queues_is_refused(
    store: MessageStore, other: tuple[str, int]
) -> None:
    mixed = b"".join(section_of(*each, [b"x"]).records for each in (("counts", 0), other))
    with pytest.raises(ProtocolError, match="or others"):
        store.stage(key(0), 0, chunk_of(StagedSection("counts", 0, 2, mixed)))
    assert store.staged(key(0)) == (0, 0)


def test_a_staged_message_above_the_limit_is_refused(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "b", settings(max_message_size=100)) as store:
        with pytest.raises(MessageTooLargeError):
            store.stage(key(0), 0, chunk_of(section_of("counts", 0, [b"a" * 100_000])))
        assert store.staged(key(0)) == (0, 0)


def test_bytes_of_another_part_are_none_of_this_one(tmp_path: Path) -> None:
    """After a power cut some file systems show in a new file what an old one had there."""
    with MessageStore.open(tmp_path, settings()) as store:
        for attempt in (0, 1):
            store.stage(key(attempt), 0, chunk_of(section_of("counts", 0, [b"%d" % attempt])))
    old, new = sorted((tmp_path / "staging").glob("*/*.part"))
    new.write_bytes(old.read_bytes())
    with MessageStore.open(tmp_path, settings()) as store:
        assert (store.staged(key(0)), store.staged(key(1))) == ((1, 1), (0, 0))


def test_staged_parts_survive_a_restart_up_to_the_first_damaged_chunk(tmp_path: Path) -> None:
    name = StageKey("a/b% ü", 3, 7, 1, 2, 99)
    with MessageStore.open(tmp_path, settings()) as store:
        for chunk in range(3):
            store.stage(name, chunk, chunk_of(section_of("counts", 0, [b"%d" % chunk])))
    [path] = (tmp_path / "staging").glob("*/*.part")
    with MessageStore.open(tmp_path, settings()) as store:
        assert store.staged(name) == (3, 3)
    path.write_bytes(path.read_bytes()[:-1])
    with MessageStore.open(tmp_path, settings()) as store:
        assert store.staged(name) == (2, 2)
        store.stage(name, 2, chunk_of(section_of("counts", 0, [b"2"])))
        store.commit_unit([name]).result()
        assert bodies(store, "counts", 0) == [b"0", b"1", b"2"]


def test_dropping_removes_what_is_not_kept(store: MessageStore, tmp_path: Path) -> None:
    other = StageKey("other", 1, 1, 0, 0, 0)
    for staged in (key(0), key(1), key(0, batch=2), other):
        store.stage(staged, 0, chunk_of(section_of("counts", 0, [b"a"])))
    assert store.drop_staged("count", lambda each: each.batch == 2) == 2
    assert store.staged(key(0)) == (0, 0)
    assert store.staged(key(0, batch=2)) == store.staged(other) == (1, 1)
    assert len(list((tmp_path / "staging").glob("*/*.part"))) == 2
    assert store.statistics().staged_parts == 2


def test_readers_see_whole_units_in_all_queues(tmp_path: Path) -> None:
    queues = [("counts", queue_id) for queue_id in range(6)]
    with MessageStore.open(tmp_path, settings(flush="async", index_file_units=16)) as store:
        stop = threading.Event()
        wrong: list[str] = []

        def watch() -> None:
            last = dict.fromkeys(queues, 0)
            while not stop.is_set():
                cut = store.cut(dict.fromkeys(queues, 0))
                if len(set(cut.ends.values())) != 1:
                    wrong.append(f"a cut through a unit: {cut.ends}")
                seen = {each: store.bounds(*each).max_offset for each in reversed(queues)}
                ordered = [seen[each] for each in reversed(queues)]
                if ordered != sorted(ordered) or any(seen[q] < last[q] for q in queues):
                    wrong.append(f"a queue behind one read before it: {seen}, {last}")
                last = seen

        watchers = [threading.Thread(target=watch) for _ in range(2)]
        for watcher in watchers:
            watcher.start()
        for batch in range(60):
            staged = [section_of(topic, queue_id, [b"x"]) for topic, queue_id in queues]
            store.stage(key(0, batch=batch), 0, chunk_of(*staged))
            store.commit_unit([key(0, batch=batch)]).result()
            store.append([append_of(*each, [b"y"]) for each in queues]).result()
        stop.set()
        for watcher in watchers:
            watcher.join()
        assert wrong == []
