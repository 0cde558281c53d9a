"""A follower's log is the primary's, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import CorruptLogError, StoreError
from headrace.store import MessageStore
from headrace.store.replication.following import CopyBytes, Greet, Halt, Lost, Restart, TruncateLog
from tests.store.replication.pair import (
    LOG,
    READ_ONLY,
    SMALL,
    InProcess,
    demote,
    open_copy,
    open_store,
    promote,
    segments,
    write_some,
)
from tests.store.samples import (
    UnsyncedOps,
    append_of,
    contents,
    copy_store,
    log_files,
    settings,
)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path / "primary") as store:
        yield store


def test_follower_has_the_same_segments_byte_by_byte(tmp_path: Path, primary: MessageStore) -> None:
    follower = InProcess(tmp_path / "copy", lambda: primary, max_bytes=900)
    for number in range(30):
        write_some(primary, number)
        follower.catch_up()
        assert contents(follower.store) == contents(primary)
    assert len(log_files(tmp_path / "copy")) > 5
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    follower.store.close()
    with open_store(tmp_path / "copy") as again:
        assert contents(again) == contents(primary)


def test_readers_of_a_follower_see_a_unit_only_with_its_end(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 2)
    seen = []
    follower = InProcess(tmp_path / "copy", lambda: primary, max_bytes=200)
    end = primary.replication.end
    while follower.machine.head.end < end:
        follower.step()
        seen.append(sum(map(len, contents(follower.store).values())))
    assert follower.machine.head.end == end
    assert set(seen) == {0, 7}
    assert sum(isinstance(each, CopyBytes) for each in follower.story) > 3
    follower.store.close()


def test_follower_that_ends_inside_a_unit_goes_on_from_its_beginning(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    begin = primary.replication.end
    write_some(primary, 2)
    follower = InProcess(tmp_path / "copy", lambda: primary, max_bytes=200)
    while follower.machine.head.end <= begin + 300:
        follower.step()
    follower.crash()
    assert follower.machine.head.end == begin
    follower.catch_up()
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    follower.store.close()


def test_entry_that_is_larger_than_a_request_arrives(tmp_path: Path, primary: MessageStore) -> None:
    primary.append([append_of("lines", 0, [b"x" * 3_000_000])]).result()
    follower = InProcess(tmp_path / "copy", lambda: primary, max_bytes=1000)
    follower.catch_up()
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    follower.store.close()


def test_damaged_byte_is_refused_with_file_and_position(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    stretch = primary.replication.read(0, 1 << 20)
    broken = bytearray(stretch.content)
    broken[100] ^= 4
    with open_copy(tmp_path / "copy") as copy:
        with pytest.raises(CorruptLogError, match=r"0{20}\.log: the entry at byte 0 \(position 0"):
            copy.replication.copy(0, 0, memoryview(broken)).result()
        assert copy.replication.head().end == 0
        # Nothing is lost: the right bytes are taken afterwards.
        copy.replication.copy(0, 0, stretch.content).result()
        assert contents(copy) == contents(primary)


def test_bytes_that_do_not_follow_are_refused(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    stretch = primary.replication.read(0, 1 << 20)
    with (
        open_copy(tmp_path / "copy") as copy,
        pytest.raises(StoreError, match="do not follow the log's end 0"),
    ):
        copy.replication.copy(0, 44, stretch.content[44:]).result()


def test_who_waits_for_a_unit_is_told_when_it_ends(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    before = primary.replication.end
    write_some(primary, 2)
    told: set[tuple[str, int]] = set()
    content = primary.replication.read(0, 1 << 20).content
    with MessageStore.open(tmp_path / "copy", settings(), told.update, ops=UnsyncedOps()) as copy:
        copy.replication.refuse(READ_ONLY)
        # Some of the unit comes with what stands before it.
        some = copy.replication.copy(0, 0, content[: before + 300]).result().end
        assert before < some
        told.clear()
        copy.replication.copy(0, some, content[some:]).result()
        assert told == {("commits", 0), *(("counts", number) for number in range(3))}


def test_copy_that_failed_goes_on_from_what_is_there(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    write_some(primary, 1)
    # Some of the bytes were appended, and their appending ended by an error all the same.
    port = follower.store.replication
    at = port.end
    port.copy(0, at, primary.replication.read(at, 1 << 20).content).result()
    assert follower.machine.handle(Lost(port.kept())) == Greet()
    follower.instruction = Greet()
    write_some(primary, 3)
    follower.catch_up()
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    follower.store.close()


def test_follower_refuses_to_write_for_its_clients(tmp_path: Path) -> None:
    with open_copy(tmp_path / "copy") as copy:
        for write in (
            lambda: copy.append([append_of("lines", 0, [b"x"])]),
            lambda: copy.commit_unit([], [append_of("lines", 0, [b"x"])]),
            lambda: copy.delete_topic("lines"),
        ):
            with pytest.raises(StoreError, match="copy of another"):
                write()


def test_promoted_follower_writes_on_in_a_new_epoch(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    promote(follower.store)
    write_some(follower.store, 1)
    assert follower.store.replication.epochs.latest == 1
    held = contents(follower.store)
    follower.store.close()
    for _ in range(2):
        with open_store(tmp_path / "copy") as again:
            assert again.replication.epochs.latest == 1
            assert contents(again) == held


def test_epochs_are_found_again_from_the_log_alone(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    promote(primary)
    write_some(primary, 1)
    promote(primary)
    table = primary.replication.epochs
    assert [each.number for each in table.epochs] == [1, 2]
    primary.close()
    (tmp_path / "primary" / "checkpoint").unlink()
    with open_store(tmp_path / "primary") as again:
        assert again.replication.epochs == table


def test_promotion_cuts_an_unfinished_unit(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    begin = primary.replication.end
    write_some(primary, 2)
    follower = InProcess(tmp_path / "copy", lambda: primary, max_bytes=200)
    while follower.machine.head.end <= begin + 300:
        follower.step()
    promote(follower.store)
    assert follower.store.replication.epochs.newest.start == begin
    assert {key[0] for key in contents(follower.store)} == {"lines"}
    follower.store.close()


def test_old_primary_cuts_what_it_wrote_alone_and_follows(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    promote(follower.store)
    for number in (3, 4, 5):
        write_some(primary, number)
        write_some(follower.store, number + 1)
    primary.close()
    old = InProcess(tmp_path / "primary", lambda: follower.store, log=LOG)
    old.catch_up()
    assert [each for each in old.story if isinstance(each, TruncateLog)]
    assert segments(tmp_path / "copy") == segments(tmp_path / "primary")
    assert contents(old.store) == contents(follower.store)
    follower.store.close()
    old.store.close()


def test_promotion_that_begins_a_segment_parts_the_logs_before_it(
    tmp_path: Path, primary: MessageStore
) -> None:
    """What the old primary still wrote into the segment before is not the new one's."""
    epoch, delete = 68, 49
    follower = InProcess(tmp_path / "copy", lambda: primary)
    primary.append([append_of("lines", 0, [b""])]).result()
    rest = SMALL.segment_size - 2 * primary.replication.end
    primary.append([append_of("lines", 0, [bytes(rest - (epoch + delete) // 2)])]).result()
    follower.catch_up()
    promote(follower.store)
    primary.delete_topic("lines").result()
    primary.append([append_of("lines", 0, [b"alone"])]).result()
    assert len(log_files(tmp_path / "copy")) == len(log_files(tmp_path / "primary")) == 2
    assert log_files(tmp_path / "copy")[1].name < log_files(tmp_path / "primary")[1].name
    primary.close()
    old = InProcess(tmp_path / "primary", lambda: follower.store, log=LOG)
    old.catch_up()
    assert segments(tmp_path / "primary") == segments(tmp_path / "copy")
    for store in (old.store, follower.store):
        store.close()


def test_primary_that_lost_its_tail_is_followed_from_where_it_goes_on(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    primary.close()
    copy_store(tmp_path / "primary", tmp_path / "older")
    with open_store(tmp_path / "primary") as store:
        for number in (1, 3, 4):
            write_some(store, number)
        follower = InProcess(tmp_path / "copy", lambda: store)
        follower.catch_up()
    with open_store(tmp_path / "older") as store:
        # A primary that has followers begins an epoch whenever it starts.
        promote(store)
        write_some(store, 5)
        write_some(store, 6)
        follower.primary = lambda: store
        follower.reopen_as_follower()
        follower.catch_up()
        assert segments(tmp_path / "copy") == segments(tmp_path / "older")
        assert contents(follower.store) == contents(store)
    follower.store.close()


def test_two_brokers_promoted_to_one_number_are_told_apart(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    one = InProcess(tmp_path / "one", lambda: primary)
    two = InProcess(tmp_path / "two", lambda: primary)
    for each in (one, two):
        each.catch_up()
        promote(each.store)
        write_some(each.store, 3)
    end = primary.replication.end
    demote(two.store)
    two.primary = lambda: one.store
    two.reopen_as_follower()
    two.catch_up()
    assert [each.position for each in two.story if isinstance(each, TruncateLog)] == [end]
    assert segments(tmp_path / "one") == segments(tmp_path / "two")
    one.store.close()
    two.store.close()


def test_follower_of_another_log_halts(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    with open_store(tmp_path / "copy") as other:
        write_some(other, 1)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.step()
    assert isinstance(follower.instruction, Halt)
    assert "another log" in follower.instruction.why
    follower.store.close()


def test_follower_with_a_newer_epoch_halts(tmp_path: Path, primary: MessageStore) -> None:
    write_some(primary, 0)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    promote(follower.store)
    follower.reopen_as_follower()
    follower.step()
    assert isinstance(follower.instruction, Halt)
    assert "another broker was promoted" in follower.instruction.why
    follower.store.close()


def test_follower_behind_the_first_position_starts_over(
    tmp_path: Path, primary: MessageStore
) -> None:
    write_some(primary, 0)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    with open_store(tmp_path / "later") as later:
        later.replication.begin_at(90_000).result()
        write_some(later, 2)
        follower.primary = lambda: later
        follower.reopen_as_follower()
        follower.catch_up()
        assert [each for each in follower.story if isinstance(each, Restart)]
        assert segments(tmp_path / "copy") == segments(tmp_path / "later")
        assert contents(follower.store) == contents(later)
    follower.store.close()


def test_copy_torn_by_a_power_cut_is_no_damage(tmp_path: Path, primary: MessageStore) -> None:
    """Entries tell what was on the primary's disk, which is nothing about the copy's."""
    for number in (0, 1, 3):
        write_some(primary, number)
    follower = InProcess(tmp_path / "copy", lambda: primary)
    follower.catch_up()
    log = log_files(tmp_path / "copy")[0]
    mark = (tmp_path / "copy" / "copied").read_bytes()
    follower.store.close()
    copy_store(tmp_path / "copy", tmp_path / "sound")
    (tmp_path / "copy" / "checkpoint").unlink()
    content = bytearray(log.read_bytes())
    content[60] ^= 1
    log.write_bytes(content)
    with pytest.raises(CorruptLogError, match="was once on disk"):
        open_copy(tmp_path / "copy")
    # The mark of a sync that did not come so far.
    other = open_copy(tmp_path / "empty")
    other.replication.copy(0, 0, primary.replication.read(0, 300).content, sync=False).result()
    (tmp_path / "copy" / "copied").write_bytes((tmp_path / "empty" / "copied").read_bytes())
    other.close()
    assert (tmp_path / "copy" / "copied").read_bytes() != mark
    with open_copy(tmp_path / "copy") as cut:
        assert cut.replication.head().end == 0
