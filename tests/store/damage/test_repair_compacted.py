"""Repairs of a store with compacted topics: what one log has lost, the other may still have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.store import StoreSettings
from headrace.store.damage.examination import apply_repair, examine_store, plan_repair, repair_store
from headrace.store.entries import HEADER_SIZE, EntryKind, parse_header
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
from tests.store.faulty_files import Killed, KilledAt
from tests.store.samples import UnsyncedOps, copy_store, log_bytes, log_files

#: Files that are larger than what a test writes: no compaction hides what is damaged.
LARGE = compacting(segment_size=1 << 20, compaction={"file_size": 1 << 20})


#: Several files in a compaction log.
TINY = compacting(compaction={"file_size": 500})


def agree(_plan: object) -> bool:
    return True


def entry_of(path: Path, offset: int) -> tuple[int, int]:
    """Where the entry of a message lies in the commit log; one message each."""
    content, at, number = log_bytes(path), 0, 0
    while at < len(content):
        entry = parse_header(content, at, at)
        assert entry is not None
        if entry.kind is EntryKind.DATA:
            if number == offset:
                return at, entry.end
            number += 1
        at = entry.end
    raise AssertionError(offset)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 16
    file.write_bytes(bytes(content))


def written(
    path: Path, *, hand_on: bool, how: StoreSettings = LARGE
) -> list[tuple[int, str, bytes]]:
    with opened(path, how=how) as store:
        for number in range(12):
            put(store, f"k{number % 5}", b"%d" % number)
        store.append([keyed(TOPIC, 0, [("k2", b"12"), ("k3", b"13")])]).result()
        if hand_on:
            store._upkeep.reput.catch_up()
        return follow(store)


@pytest.mark.parametrize("lost", [0, 3, 12])
def test_what_the_commit_log_lost_stays_in_the_compaction_log(tmp_path: Path, lost: int) -> None:
    before = written(tmp_path, hand_on=True)
    begin, _ = entry_of(tmp_path, lost)
    flip(log_files(tmp_path)[0], begin + HEADER_SIZE + 95)
    plan = repair_store(tmp_path, agree, ops=UnsyncedOps())
    assert plan is not None
    count = 2 if lost == 12 else 1
    assert [(loss.first, loss.end) for loss in plan.losses] == [(lost, lost + count)]
    with opened(tmp_path, how=LARGE) as store:
        assert follow(store) == before
        assert put(store, "new", b"x") == 14
    with opened(tmp_path, how=LARGE) as store:
        assert follow(store)[:14] == before
        assert table(follow(store))["k4"] == b"9"


@pytest.mark.parametrize("lost", [0, 3, 11])
def test_what_was_not_handed_on_yet_is_handed_on_but_for_what_is_lost(
    tmp_path: Path, lost: int
) -> None:
    before = written(tmp_path, hand_on=False)
    begin, _ = entry_of(tmp_path, lost)
    flip(log_files(tmp_path)[0], begin + HEADER_SIZE + 95)
    for folder in (tmp_path / "compaction").glob("*/*"):
        for file in folder.iterdir():
            file.unlink()
    assert repair_store(tmp_path, agree, ops=UnsyncedOps())
    with opened(tmp_path, how=LARGE) as store:
        store._upkeep.reput.catch_up()
        assert follow(store) == [record for record in before if record[0] != lost]
        assert put(store, "new", b"x") == 14
        store._upkeep.reput.catch_up()
        assert follow(store)[-1] == (14, "new", b"x")


def _tear(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def _lose(file: Path) -> None:
    file.unlink()


def _shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


@pytest.mark.parametrize("harm", [_tear, _lose, _shorten])
@pytest.mark.parametrize("pattern", ["*.data", "*.index", "*.keys", "MANIFEST", "MANIFEST.copy"])
def test_a_damaged_compaction_log_is_filled_from_the_commit_log(
    tmp_path: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    """Each file in turn: the commit log still has everything, so nothing is lost."""
    written(tmp_path, hand_on=True, how=TINY)
    folder = queue_folder_of(tmp_path)
    with opened(tmp_path, how=TINY) as store:
        before = follow(store)
    for name in sorted(path.name for path in folder.glob(pattern)):
        path = copy_store(tmp_path, tmp_path.with_name("copy"))
        harm(queue_folder_of(path) / name)
        # The copy of the manifest is there for repairs only, and what belongs to the active
        # file is made again at every start.
        active = name.startswith(max(path.stem for path in folder.glob("*.data")))
        derived = active and pattern in ("*.index", "*.keys")
        assert examine_store(path).damage or pattern == "MANIFEST.copy" or derived
        plan = repair_store(path, agree, ops=UnsyncedOps())
        assert plan is not None
        assert [queue.lost for queue in plan.queues] in ([], [[]])
        assert examine_store(path).damage == []
        with opened(path, how=TINY) as store:
            store._upkeep.reput.catch_up()
            assert follow(store) == before
            assert put(store, "new", b"x") == before[-1][0] + 1
        assert not repair_store(path, agree, ops=UnsyncedOps())


def test_what_neither_log_has_is_lost_and_named(tmp_path: Path) -> None:
    """An expired commit log cannot help: the records around the damage stay, and are compacted."""
    clock = Clock()
    with opened(tmp_path, clock, how=TINY) as store:
        for number in range(30):
            put(store, f"k{number}", b"%d" % number)
        store._upkeep.reput.catch_up()
        clock.now += 2 * HOUR
        put(store, "late", b"x")
        store.expire()
        assert store.statistics().begin > 0
        before = follow(store)
    file = min(queue_folder_of(tmp_path).glob("*.data"))
    content = file.read_bytes()
    entry = parse_header(content, 0, 0)
    assert entry is not None
    victim = entry
    flip(file, victim.payload_position + 50)
    [found] = examine_store(tmp_path).damage
    assert (found.path, found.offset) == (file, victim.position)
    plan = repair_store(tmp_path, agree, ops=UnsyncedOps())
    assert plan is not None
    [queue] = plan.queues
    assert len(queue.lost) == victim.count
    assert queue.key == (TOPIC, 0)
    [kept] = (plan.aside / "compaction").glob(f"*/*/{file.name}")
    assert kept.read_bytes() != content
    with opened(tmp_path, clock, how=TINY) as store:
        assert follow(store) == [each for each in before if each[0] not in queue.lost]
        store.compact(TOPIC, force=True)
        assert follow(store)[-1][0] == before[-1][0]


def test_a_log_without_a_manifest_is_left_alone_and_named(tmp_path: Path) -> None:
    written(tmp_path, hand_on=True, how=TINY)
    folder = queue_folder_of(tmp_path)
    (folder / "MANIFEST").write_bytes(b"")
    (folder / "MANIFEST.copy").unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert [found.path for found in examine_store(tmp_path).damage] == [folder / "MANIFEST"]
    plan = repair_store(tmp_path, agree, ops=UnsyncedOps())
    assert plan is not None
    assert not plan
    assert [queue.folder for queue in plan.hopeless] == [folder]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_repair_of_compaction_logs_may_be_killed_at_every_file_operation(
    tmp_path: Path,
) -> None:
    written(tmp_path / "whole", hand_on=True, how=TINY)
    with opened(tmp_path / "whole", how=TINY) as store:
        before = follow(store)

    def damaged() -> Path:
        path = copy_store(tmp_path / "whole", tmp_path / "store")
        first, *_, last = sorted(queue_folder_of(path).glob("*.data"))
        _tear(first)
        _shorten(last)
        return path

    counting = KilledAt(1 << 30)
    path = damaged()
    apply_repair(plan_repair(path, counting), counting)
    assert counting.done > 30
    for step in range(1, counting.done, 6):
        path = damaged()
        with pytest.raises(Killed):
            apply_repair(plan_repair(path, UnsyncedOps()), KilledAt(step))
        repair_store(path, agree, ops=UnsyncedOps())
        assert examine_store(path).damage == []
        with opened(path, how=TINY) as store:
            store._upkeep.reput.catch_up()
            assert follow(store) == before
