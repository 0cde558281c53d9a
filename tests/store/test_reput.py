"""Reput: what compaction logs get, once, whatever happens; and reads over the seam.

Numbers in docstrings are those of the behaviours of compaction topics that a test proves.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from headrace.store import MessageStore, ReadStatus, StageKey
from headrace.store.compaction import QueueLog
from tests.store.compacted import (
    HOUR,
    TOPIC,
    Clock,
    compacting,
    follow,
    keyed,
    opened,
    put,
    queue_folder_of,
    table,
)
from tests.store.samples import chunk_of, copy_store, section_of, split


@pytest.fixture
def clock() -> Clock:
    return Clock()


def hand_on(store: MessageStore) -> None:
    store._upkeep.reput.catch_up()


def queue_log(store: MessageStore, queue_id: int = 0, topic: str = TOPIC) -> QueueLog:
    return store._queue_logs.of(store._catalog.view((topic, queue_id)))


def test_a_record_is_readable_at_once_and_comes_to_the_compaction_log_later(
    tmp_path: Path,
) -> None:
    """Behaviours 1 and 2: the commit log first, then the queue's own files."""
    with opened(tmp_path) as store:
        for number in range(10):
            put(store, f"k{number % 3}", b"%d" % number)
            assert follow(store)[-1] == (number, f"k{number % 3}", b"%d" % number)
        before = follow(store)
        hand_on(store)
        assert queue_log(store).next_offset == 10
        assert follow(store) == before


def test_records_of_a_queue_lie_end_to_end_in_offset_order(tmp_path: Path) -> None:
    """Behaviour 3: interleaved queues of the commit log are apart in their compaction logs."""
    with opened(tmp_path, how=compacting(compaction={"file_size": 1 << 20})) as store:
        for number in range(30):
            put(store, "k", b"%d" % number, queue_id=number % 3)
        hand_on(store)
        for queue_id in range(3):
            result = store.read(TOPIC, queue_id, 0, 100, 1 << 20)
            assert (result.count, len(result.slices)) == (10, 1)
            rows = queue_log(store, queue_id).units(0, 10)
            assert rows["offset"].tolist() == list(range(10))


def test_expiry_takes_nothing_from_a_compaction_log(tmp_path: Path, clock: Clock) -> None:
    """Behaviour 4, and B7: the first offset is that of the oldest record that is readable."""
    with opened(tmp_path, clock) as store:
        put(store, "old", b"still here")
        before = store.store_time(TOPIC, 0, 0)
        for number in range(30):
            put(store, "new", b"%d" % number)
        clock.now += 2 * HOUR
        for number in range(20):
            put(store, "newer", b"%d" % number)
        assert store.expire().segments > 2
        dense = store._catalog.view((TOPIC, 0)).min_offset
        assert dense > 10
        store.compact(force=True)
        assert store.bounds(TOPIC, 0).min_offset == 0
        assert table(follow(store))["old"] == b"still here"
        assert store.store_time(TOPIC, 0, 0) == before
        assert store.offset_at(TOPIC, 0, 0) == 0
        assert store.offset_at(TOPIC, 0, before + 1) > dense
        assert store.offset_at(TOPIC, 0, before, upper=True) == 30
        assert store.offset_at(TOPIC, 0, clock.now + 1) == 51


def test_equal_keys_in_two_queues_are_two_records(tmp_path: Path) -> None:
    """Behaviour 5."""
    with opened(tmp_path) as store:
        for queue_id in range(2):
            for number in range(5):
                put(store, "same", b"%d" % number, queue_id)
        store.compact(force=True)
        for queue_id in range(2):
            assert follow(store, queue_id) == [(4, "same", b"4")]


def test_the_reput_is_exactly_once_wherever_it_was_killed(tmp_path: Path) -> None:
    """Behaviours 2, 6 and 17, B14: what was handed on is not handed on again."""
    live = tmp_path / "live"
    with opened(live) as store:
        for number in range(8):
            put(store, f"k{number}", b"%d" % number)
        hand_on(store)
        for number in range(8, 12):
            put(store, f"k{number}", b"%d" % number)
        killed = copy_store(live, tmp_path / "killed")
        hand_on(store)
        later = copy_store(live, tmp_path / "later")
    for path in (killed, later):
        for _ in range(2):
            with opened(path) as store:
                hand_on(store)
                assert queue_log(store).next_offset == 12
                assert [each[0] for each in follow(store)] == list(range(12))


@pytest.mark.parametrize("lost", ["checkpoint", "older checkpoint", "compaction", "one queue"])
def test_lost_or_older_notes_cost_work_only(tmp_path: Path, lost: str) -> None:
    """T19: the result is the same when what says how far the reput is is lost, or older."""
    with opened(tmp_path) as store:
        for number in range(6):
            put(store, f"k{number % 2}", b"%d" % number, queue_id=number % 2)
        store._writer.checkpoint().result()
        old = (tmp_path / "checkpoint").read_bytes()
        for number in range(6, 12):
            put(store, f"k{number % 2}", b"%d" % number, queue_id=number % 2)
        hand_on(store)
        before = [follow(store, queue_id) for queue_id in range(2)]
    match lost:
        case "checkpoint":
            (tmp_path / "checkpoint").unlink()
        case "older checkpoint":
            (tmp_path / "checkpoint").write_bytes(old)
        case "compaction":
            shutil.rmtree(tmp_path / "compaction")
        case _:
            shutil.rmtree(queue_folder_of(tmp_path))
    with opened(tmp_path) as store:
        assert [follow(store, queue_id) for queue_id in range(2)] == before
        hand_on(store)
        assert [follow(store, queue_id) for queue_id in range(2)] == before
        assert {queue_log(store, queue_id).next_offset for queue_id in range(2)} == {6}


def test_a_note_that_is_ahead_loses_nothing_to_retention(tmp_path: Path, clock: Clock) -> None:
    """T19, B9: a compaction log that lacks what it should have gets it before it is deleted."""
    with opened(tmp_path, clock) as store:
        for number in range(20):
            put(store, f"k{number}", b"%d" % number)
        hand_on(store)
    shutil.rmtree(queue_folder_of(tmp_path))
    with opened(tmp_path, clock) as store:
        clock.now += 2 * HOUR
        for number in range(10):
            put(store, "other", b"%d" % number, topic="lines")
        assert store.expire().segments > 1
        assert [each[0] for each in follow(store)] == list(range(20))


def test_a_unit_shows_up_whole_and_only_committed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        key = StageKey("job", 1, 1, 0, 0, 0)
        store.stage(key, 0, chunk_of(section_of(TOPIC, 0, [b"x"] * 20)))
        put(store, "k", b"before")
        hand_on(store)
        assert len(follow(store)) == 1
        store.commit_unit([key], [keyed(TOPIC, 1, [("done", b"1")])]).result()
        result = store.read(TOPIC, 0, 1, 100, 1 << 20)
        assert result.count == 20
        hand_on(store)
        assert store.read(TOPIC, 0, 0, 100, 1 << 20).next_offset in (8, 21) or result.count == 20
        assert queue_log(store).next_offset == 21


def test_reads_cross_the_seam_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    """Behaviours 24 to 27: at any seam, start and size of reads."""
    chance = random.Random(7)
    with opened(tmp_path) as store:
        model: list[tuple[int, str, bytes]] = []
        for round_ in range(12):
            for _ in range(chance.randint(1, 12)):
                key, body = f"k{chance.randint(0, 5)}", b"%d" % chance.randint(0, 999)
                model.append((put(store, key, body), key, body))
            if chance.random() < 0.6:
                hand_on(store)
            if round_ % 4 == 3:
                store.compact(force=True)
            kept = follow(store)
            assert set(kept) <= set(model)
            assert table(kept) == table(model)
            offsets = [each[0] for each in kept]
            assert offsets == sorted(set(offsets))
            bounds = store.bounds(TOPIC, 0)
            assert (bounds.min_offset, bounds.max_offset) == (offsets[0], len(model))
            for start in range(len(model) + 1):
                count = chance.randint(1, 5)
                assert follow(store, start=start, count=count) == [
                    each for each in kept if each[0] >= start
                ]


def test_a_hole_up_to_the_end_leads_to_the_end(tmp_path: Path) -> None:
    """C12: deletes that are gone leave the queue's end, and readers get there."""
    with opened(tmp_path) as store:
        put(store, "a", b"1")
        put(store, "a", b"")
        store.compact(force=True)
        store.compact(force=True)
        assert follow(store) == []
        assert store.bounds(TOPIC, 0).max_offset == 2
        result = store.read(TOPIC, 0, 0)
        assert (result.status, result.next_offset) == (ReadStatus.NO_MATCH, 2)
        assert store.read(TOPIC, 0, 3).status is ReadStatus.BEYOND
        assert put(store, "b", b"2") == 2
        assert follow(store) == [(2, "b", b"2")]


def test_a_tag_filter_applies_on_both_sides_of_the_seam(tmp_path: Path) -> None:
    from headrace.protocol.groups import java_hash

    with opened(tmp_path) as store:
        for number in range(10):
            tags = "odd" if number % 2 else "even"
            store.append([keyed(TOPIC, 0, [(f"k{number}", b"x")], tags)]).result()
            if number == 5:
                hand_on(store)
        found = []
        offset = 0
        while offset < 10:
            result = store.read(TOPIC, 0, offset, 100, 1 << 20, frozenset([java_hash("odd")]))
            found += [record[20:28][-1] for record in split(result.slices)]
            assert result.next_offset > offset
            offset = result.next_offset
        assert found == [1, 3, 5, 7, 9]


def test_a_cut_over_compacted_queues_loses_nothing(tmp_path: Path, clock: Clock) -> None:
    """Also for a begin below what the commit log still holds."""
    with opened(tmp_path, clock) as store:
        for number in range(30):
            put(store, f"k{number % 7}", b"%d" % number, queue_id=number % 2)
            put(store, "k", b"%d" % number, topic="lines")
        clock.now += 2 * HOUR
        for number in range(30, 40):
            put(store, f"k{number % 7}", b"%d" % number, queue_id=number % 2)
            put(store, "k", b"%d" % number, topic="lines")
        assert store.expire().segments > 1
        store.compact(force=True)
        for number in range(40, 50):
            put(store, f"k{number % 7}", b"%d" % number, queue_id=number % 2)
        queues = [(TOPIC, 0), (TOPIC, 1), ("lines", 0)]
        everything = {
            key: [
                each[0]
                for each in follow(store, key[1], key[0], start=store.bounds(*key).min_offset)
            ]
            for key in queues
        }
        begins = dict.fromkeys(queues, 0)
        seen: dict[tuple[str, int], list[int]] = {key: [] for key in queues}
        position = 0
        for _ in range(60):
            cut = store.cut(begins, limit=3)
            assert cut.position >= position
            position = cut.position
            count = 0
            for key in queues:
                part = [each for each in everything[key] if begins[key] <= each < cut.ends[key]]
                seen[key] += part
                count += len(part)
            assert count <= 3
            if cut.ends == begins:
                break
            begins = dict(cut.ends)
        assert seen == everything
        assert store.cut(dict.fromkeys(queues, 0)).ends == {
            key: store.bounds(*key).max_offset for key in queues
        }


def test_a_topic_that_is_made_again_starts_clean(tmp_path: Path) -> None:
    """B8, T20: no old record comes back, no new one is taken for a repeat."""
    with opened(tmp_path) as store:
        for number in range(6):
            put(store, "k", b"old %d" % number)
        hand_on(store)
        folder = queue_folder_of(tmp_path)
        store.delete_topic(TOPIC).result()
        assert follow(store) == []
        assert store.compacted_topics() == []
        hand_on(store)
        assert not folder.exists()
        store.compact_topic(TOPIC).result()
        assert put(store, "k", b"new") == 0
        hand_on(store)
        assert follow(store) == [(0, "k", b"new")]
        folder = queue_folder_of(tmp_path)
    with opened(tmp_path) as store:
        assert follow(store) == [(0, "k", b"new")]
        store.delete_topic(TOPIC).result()
        killed = copy_store(tmp_path, tmp_path.parent / "killed")
    assert queue_folder_of(killed) == killed / folder.relative_to(tmp_path)
    with opened(killed) as store:
        assert not (killed / folder.relative_to(tmp_path)).exists()
        assert follow(store) == []
    shutil.rmtree(killed)


def test_records_from_before_a_topic_was_compacted_take_part(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, compacting()) as store:
        for number in range(6):
            put(store, "k", b"%d" % number)
        store.compact_topic(TOPIC).result()
        killed = copy_store(tmp_path, tmp_path.parent / "before")
        store.compact(force=True)
        assert follow(store) == [(5, "k", b"5")]
    with MessageStore.open(killed, compacting()) as store:
        assert store.compacted_topics() == [TOPIC]
        store.compact(force=True)
        assert follow(store) == [(5, "k", b"5")]
    shutil.rmtree(killed)


def test_compacting_a_topic_again_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        end = store.statistics().end
        store.compact_topic(TOPIC).result()
        assert store.statistics().end == end
        assert store.compacted_topics() == [TOPIC]


def test_a_commit_log_that_was_cut_takes_the_compaction_log_along(tmp_path: Path) -> None:
    """B13, T20: offsets that are given again are no repeats."""
    from headrace.store.replication.copyist import cut_log

    with opened(tmp_path) as store:
        put(store, "a", b"1")
        end = store.statistics().end
        for number in range(5):
            put(store, "b", b"lost %d" % number)
        hand_on(store)
    cut_log(tmp_path, end)
    with opened(tmp_path) as store:
        for number in range(7):
            put(store, "b", b"kept %d" % number)
        hand_on(store)
        assert follow(store) == [(0, "a", b"1")] + [
            (number + 1, "b", b"kept %d" % number) for number in range(7)
        ]
