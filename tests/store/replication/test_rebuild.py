"""A copy that lacks old records of compacted topics gets them by messages.

Numbers in docstrings are those of the behaviours of compaction topics that a test proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import CorruptLogError
from headrace.store import MessageStore
from headrace.store.replication.following import TruncateLog
from headrace.store.replication.port import QueueRebuild, RebuildStage
from tests.store.compacted import TOPIC, compacting, follow, put, queue_folder_of, table
from tests.store.replication.pair import InProcess, demote, open_store, promote
from tests.store.samples import append_of, log_files

HOW = compacting(retention=None, compaction={"dirty_ratio": 1.0})


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[MessageStore]:
    """Keys that were written once long ago, keys that change, and one that was deleted."""
    with open_store(tmp_path / "primary", HOW) as store:
        store.compact_topic(TOPIC).result()
        for number in range(12):
            put(store, f"old{number}", b"v%d" % number)
        put(store, "gone", b"value")
        put(store, "gone", b"")
        for number in range(40):
            put(store, f"k{number % 3}", b"%d" % number)
            store.append([append_of("lines", 0, [b"x" * 40])]).result()
        put(store, "other", b"1", queue_id=1)
        for _ in range(10):
            store.append([append_of("lines", 0, [b"x" * 40])]).result()
        store.compact()
        yield store


def copy_of(primary: MessageStore, path: Path) -> InProcess:
    """A copy that begins with the newest segment."""
    follower = InProcess(path, lambda: primary, HOW, from_newest=True)
    follower.catch_up()
    return follower


def pull_once(
    entry: QueueRebuild, copy: MessageStore, primary: MessageStore, count: int
) -> QueueRebuild:
    found = primary.read(entry.topic, entry.queue_id, entry.next_offset, count, 1 << 20)
    following = found.next_offset if found.count else entry.upto
    entry = copy.rebuilds.append(entry, b"".join(found.slices), following)
    return copy.rebuilds.pulled(entry) if following >= entry.upto else entry


def step(copy: MessageStore, primary: MessageStore, count: int = 3) -> QueueRebuild | None:
    """Do the next thing of the first rebuild; None when there is nothing to be done."""
    for entry in copy.rebuilds.wanted():
        if not entry.session:
            return copy.rebuilds.begin(entry, "session")
        if entry.stage is RebuildStage.PULLING:
            return pull_once(entry, copy, primary, count)
        return copy.rebuilds.compact(entry)
    return None


def rebuild(copy: MessageStore, primary: MessageStore) -> int:
    """Do everything; how many steps that took."""
    for number in range(1000):
        if step(copy, primary) is None:
            return number
    raise AssertionError("no end")


def both_compacted(copy: MessageStore, primary: MessageStore, queue_id: int = 0) -> None:
    """The forced compaction leaves the same records as one of the primary does."""
    primary.compact(force=True)
    copy.compact(force=True)
    assert follow(copy, queue_id) == follow(primary, queue_id)


def test_commit_log_alone_lacks_the_old_records(tmp_path: Path, primary: MessageStore) -> None:
    """Behaviour 28: the copy has the commit log's newest file, and old keys are not in it."""
    follower = copy_of(primary, tmp_path / "copy")
    assert log_files(tmp_path / "copy")[0].name == log_files(tmp_path / "primary")[-1].name
    assert "old3" in table(follow(primary))
    assert "old3" not in table(follow(follower.store))
    [first, second] = follower.store.rebuilds.wanted()
    assert (first.upto, second.upto) == (54, 1)
    follower.store.close()


def test_rebuilt_copy_serves_the_same_values(tmp_path: Path, primary: MessageStore) -> None:
    """Behaviours 29 to 31: messages from 0 up to the own first offset, then one compaction."""
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    rebuild(copy, primary)
    assert copy.rebuilds.pending() == []
    assert table(follow(copy)) == table(follow(primary))
    assert follow(copy, 1) == [(0, "other", b"1")]
    both_compacted(copy, primary)
    copy.close()


def test_messages_that_come_meanwhile_are_neither_lost_nor_doubled(
    tmp_path: Path, primary: MessageStore
) -> None:
    """Behaviour 32: and nothing of the queue is compacted until the rebuild has ended."""
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    number = 0
    while step(copy, primary) is not None:
        put(primary, f"k{number % 3}", b"new%d" % number)
        put(primary, f"n{number}", b"%d" % number)
        follower.catch_up()
        pulling = copy.rebuilds.is_rebuilding(TOPIC, 0)
        folders = list((tmp_path / "copy" / "compaction" / TOPIC).glob("0-*"))
        if pulling and folders:
            assert copy.compact(TOPIC, force=True) == []
        number += 1
    follower.catch_up()
    offsets = [offset for offset, _, _ in follow(copy)]
    assert offsets == sorted(set(offsets))
    assert table(follow(copy)) == table(follow(primary))
    both_compacted(copy, primary)
    copy.close()


def test_rebuild_killed_after_any_step_goes_on(tmp_path: Path, primary: MessageStore) -> None:
    """B12: RocketMQ's replica that dies in the middle never resumes."""
    whole = copy_of(primary, tmp_path / "whole")
    steps = rebuild(whole.store, primary)
    wanted = follow(whole.store)
    whole.store.close()
    assert steps > 8
    for killed_after in range(1, steps):
        path = tmp_path / f"copy{killed_after}"
        follower = copy_of(primary, path)
        for _ in range(killed_after):
            step(follower.store, primary)
        begun = {each.key: each for each in follower.store.rebuilds.pending()}
        follower.crash()
        # What it froze at the start, and how far it came, are as they were.
        assert {each.key: each for each in follower.store.rebuilds.pending()} == begun
        follower.catch_up()
        assert rebuild(follower.store, primary) == steps - killed_after
        assert follow(follower.store) == wanted
        follower.store.close()


def test_records_that_come_twice_are_taken_once(tmp_path: Path, primary: MessageStore) -> None:
    """A kill between the records and the journal: the same answer comes again."""
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    entry = step(copy, primary)
    assert entry is not None
    once = pull_once(entry, copy, primary, 5)
    again = pull_once(entry, copy, primary, 5)
    assert (once.next_offset, once.records, again.records) == (5, 5, 0)
    rebuild(copy, primary)
    both_compacted(copy, primary)
    copy.close()


def test_deleted_key_does_not_return(tmp_path: Path, primary: MessageStore) -> None:
    """The value has come, and the primary would drop the delete behind it: a pause forbids that."""
    put(primary, "late", b"value")
    put(primary, "late", b"")
    for _ in range(30):
        primary.append([append_of("lines", 0, [b"x" * 40])]).result()
    primary.compact()
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    key = (TOPIC, 0, primary.rebuilds.birth(TOPIC, 0))
    assert primary.rebuilds.pause(key)
    while step(copy, primary) is not None:
        assert primary.compact(TOPIC, force=True)[1:] == []
    primary.rebuilds.resume(key)
    assert "late" not in table(follow(copy))
    assert "gone" not in table(follow(copy))
    both_compacted(copy, primary)
    copy.close()


def test_session_that_begins_again_forgets_what_came(tmp_path: Path, primary: MessageStore) -> None:
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    entry = step(copy, primary)
    assert entry is not None
    entry = pull_once(entry, copy, primary, 5)
    entry = copy.rebuilds.begin(entry, "another")
    assert (entry.next_offset, entry.records, entry.session) == (0, 0, "another")
    rebuild(copy, primary)
    assert table(follow(copy)) == table(follow(primary))
    copy.close()


def test_retention_leaves_what_a_waiting_queue_needs(tmp_path: Path, primary: MessageStore) -> None:
    follower = copy_of(primary, tmp_path / "copy")
    for number in range(40):
        put(primary, f"k{number % 3}", b"more%d" % number)
    follower.catch_up()
    copy = follower.store
    assert copy._upkeep.reput.catch_up() <= copy.statistics().begin + 1500
    rebuild(copy, primary)
    assert copy._upkeep.reput.catch_up() == copy.statistics().end
    copy.close()


def test_records_of_another_queue_are_refused(tmp_path: Path, primary: MessageStore) -> None:
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    entry = step(copy, primary)
    assert entry is not None
    found = primary.read(TOPIC, 1, 0, 1, 1000)
    with pytest.raises(CorruptLogError, match="sent records of queue"):
        copy.rebuilds.append(entry, b"".join(found.slices), 1)
    copy.close()


def test_damaged_journal_means_more_work_and_nothing_else(
    tmp_path: Path, primary: MessageStore
) -> None:
    follower = copy_of(primary, tmp_path / "copy")
    for _ in range(3):
        step(follower.store, primary)
    follower.store.close()
    (tmp_path / "copy" / "rebuild").write_bytes(b"0" * 40)
    follower.reopen()
    follower.catch_up()
    rebuild(follower.store, primary)
    assert table(follow(follower.store)) == table(follow(primary))
    follower.store.close()


def test_whole_copy_needs_no_rebuild(tmp_path: Path, primary: MessageStore) -> None:
    follower = InProcess(tmp_path / "copy", lambda: primary, HOW)
    follower.catch_up()
    assert follower.store.rebuilds.wanted() == []
    assert table(follow(follower.store)) == table(follow(primary))
    follower.store.close()


@pytest.mark.parametrize("from_newest", [False, True])
def test_cut_log_takes_its_compaction_log_with_it(
    tmp_path: Path, primary: MessageStore, *, from_newest: bool
) -> None:
    """B13 and T20: a key whose newest value was cut gets its older one back, compacted or not."""
    follower = InProcess(tmp_path / "copy", lambda: primary, HOW, from_newest=from_newest)
    follower.catch_up()
    rebuild(follower.store, primary)
    other = InProcess(tmp_path / "other", lambda: primary, HOW)
    other.catch_up()
    wanted = table(follow(primary))
    # Nobody but the primary and one copy have this, and both compact it.
    put(primary, "old3", b"cut")
    put(primary, "k1", b"")
    follower.catch_up()
    follower.store.compact(force=True)
    assert table(follow(follower.store))["old3"] == b"cut"
    promote(other.store)
    put(other.store, "fresh", b"1")
    follower.primary = lambda: other.store
    demote(follower.store)
    follower.reopen_as_follower()
    follower.catch_up()
    assert [each for each in follower.story if isinstance(each, TruncateLog)]
    rebuild(follower.store, other.store)
    assert table(follow(follower.store)) == wanted | {"fresh": b"1"}
    both_compacted(follower.store, other.store)
    # Offsets that were used before are used again: no record is taken for a duplicate.
    put(other.store, "old3", b"again")
    follower.catch_up()
    assert table(follow(follower.store))["old3"] == b"again"
    assert queue_folder_of(tmp_path / "copy").is_dir()
    follower.store.close()
    other.store.close()


def test_promoted_copy_does_without(tmp_path: Path, primary: MessageStore) -> None:
    follower = copy_of(primary, tmp_path / "copy")
    copy = follower.store
    step(copy, primary)
    copy.rebuilds.abandon()
    promote(copy)
    assert copy.rebuilds.wanted() == []
    put(copy, "k0", b"later")
    copy._upkeep.reput.catch_up()
    assert table(follow(copy))["k0"] == b"later"
    copy.close()
