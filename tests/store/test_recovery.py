"""What is left after a crash, a damaged byte or a lost file."""

from __future__ import annotations

import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings as effort, strategies as st

from headrace.errors import CorruptLogError
from headrace.store import MessageStore, RecoveryReport, StageKey
from headrace.store.catalog import QueueCatalog
from headrace.store.entries import HEADER_SIZE, EntryKind, parse_header
from headrace.store.log import CommitLog
from headrace.store.recovery import recover
from tests.store.samples import (
    UnsyncedOps,
    append_of,
    bodies,
    chunk_of,
    contents,
    copy_store,
    log_bytes,
    log_files,
    section_of,
    settings,
)

SMALL = settings(segment_size=1500, index_file_units=4)
BIG = settings(index_file_units=4)


def write_some(store: MessageStore, number: int, *, unit: bool = False) -> None:
    """Write a message to two queues, or a unit of a few messages."""
    if unit:
        key = StageKey("job", 1, number, 0, 0, 0)
        sections = [section_of("counts", q, [b"u%d" % number] * (q + 1)) for q in range(3)]
        store.stage(key, 0, chunk_of(*sections))
        store.commit_unit([key], [append_of("commits", 0, [b"%d" % number])]).result()
        store.drop_staged("job", lambda _: False)
    else:
        for queue_id in range(2):
            store.append([append_of("lines", queue_id, [b"m%d" % number] * 2)]).result()


@dataclass
class Written:
    """A store as it was written, and what it held at each moment."""

    path: Path
    #: What readers saw, by the position of the log's end.
    history: dict[int, dict[tuple[str, int], list[bytes]]]

    def held_at(self, position: int) -> dict[tuple[str, int], list[bytes]]:
        return self.history[max(end for end in self.history if end <= position)]


def written(path: Path, units: list[bool], store_settings: object = BIG) -> Written:
    with MessageStore.open(path, store_settings) as store:  # type: ignore[arg-type]
        history = {0: contents(store)}
        for number, unit in enumerate(units):
            write_some(store, number, unit=unit)
            # Both appends are one step for the test: cuts between them are looked up, too.
            history[store.statistics().end] = contents(store)
    return Written(path, history)


def entry_ends(path: Path) -> list[int]:
    """Positions at which a cut loses no more than what lies behind."""
    content = log_bytes(path)
    ends, at = [0], 0
    while at < len(content):
        entry = parse_header(content, at, at)
        assert entry is not None
        at = entry.end
        if entry.kind is EntryKind.END or (entry.kind is not EntryKind.BEGIN and entry.unit < 0):
            ends.append(at)
    return ends


def cut_log(path: Path, position: int) -> None:
    """Cut a store's log at a byte, as if nothing later had reached the disk."""
    for file in reversed(log_files(path)):
        base = int(file.stem)
        if base >= position and base > 0:
            file.unlink()
        else:
            with file.open("r+b") as opened:
                opened.truncate(position - base)
            return


def flip(file: Path, at: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(bytes(content))


def forget_checkpoint(path: Path) -> None:
    (path / "checkpoint").unlink(missing_ok=True)


def recovered(path: Path) -> tuple[QueueCatalog, RecoveryReport]:
    """Recover a folder without the rest of a store, which takes longer to start than that."""
    ops = UnsyncedOps()
    log = CommitLog(path / "log", ops, segment_size=1 << 30)
    catalog = QueueCatalog(path / "index", BIG.index_file_units)
    report = recover(
        log,
        catalog,
        path / "checkpoint",
        ops,
        file_units=BIG.index_file_units,
        unit_marks=True,
    )
    log.close()
    return catalog, report


def prefix_sizes(
    whole: dict[tuple[str, int], list[bytes]], part: dict[tuple[str, int], list[bytes]]
) -> int:
    """Check that every queue holds a prefix of what it held; the messages in all."""
    for key, records in part.items():
        assert records == whole[key][: len(records)]
    return sum(map(len, part.values()))


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_log_cut_at_every_byte_keeps_whole_entries_and_whole_units(
    tmp_path: Path, checkpoint: bool
) -> None:
    source = written(tmp_path, [False, True])
    whole = {key: len(records) for key, records in source.history[max(source.history)].items()}
    ends = entry_ends(tmp_path)
    content = log_bytes(tmp_path)
    saved = (tmp_path / "checkpoint").read_bytes()
    for position in range(len(content), ends[1], -1):
        log_files(tmp_path)[0].write_bytes(content[:position])
        if checkpoint:
            (tmp_path / "checkpoint").write_bytes(saved)
        else:
            forget_checkpoint(tmp_path)
        catalog, report = recovered(tmp_path)
        kept = max(end for end in ends if end <= position)
        assert (catalog.position, report.cut_bytes) == (kept, position - kept)
        assert log_bytes(tmp_path) == content[:kept]
        counts = {key: catalog.view(key).max_offset for key in catalog.queues()}
        if kept == len(content):
            assert counts == whole
        else:
            assert "commits" not in {topic for topic, _ in counts}
            assert all(count <= whole[key] for key, count in counts.items())


@effort(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_cut_leaves_a_prefix_and_opening_twice_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, units: list[bool], chance: random.Random
) -> None:
    base = tmp_path_factory.mktemp("store")
    source = written(base / "source", units, SMALL)
    ends = entry_ends(source.path)
    position = chance.randint(0, ends[-1])
    cut_log(source.path, position)
    if chance.random() < 0.5:
        forget_checkpoint(source.path)
    kept = max(end for end in ends if end <= position)
    with MessageStore.open(source.path, SMALL, ops=UnsyncedOps()) as store:
        first = contents(store)
    prefix_sizes(source.history[max(source.history)], first)
    if kept in source.history:
        assert first == source.history[kept]
    after_first = log_bytes(source.path)
    assert len(after_first) == kept
    with MessageStore.open(source.path, SMALL, ops=UnsyncedOps()) as store:
        assert contents(store) == first
        assert store.statistics().recovery.cut_bytes == 0
        write_some(store, 99, unit=True)
        assert bodies(store, "commits", 0)[-1] == b"99"
    assert log_bytes(source.path)[:kept] == after_first
    shutil.rmtree(base)


def test_a_unit_without_its_end_goes_back_to_its_beginning(tmp_path: Path) -> None:
    source = written(tmp_path, [False, True])
    ends = entry_ends(tmp_path)
    cut_log(tmp_path, ends[-1] - HEADER_SIZE)
    with MessageStore.open(tmp_path, BIG) as store:
        assert contents(store) == source.history[ends[-2]]
        assert store.queues() == [("lines", 0), ("lines", 1)]


def test_without_unit_marks_a_part_of_a_unit_is_kept(tmp_path: Path) -> None:
    unsafe = settings(unit_marks=False)
    written(tmp_path, [False, True], unsafe)
    ends = entry_ends(tmp_path)
    cut_log(tmp_path, ends[-1] - 1)
    with MessageStore.open(tmp_path, unsafe) as store:
        # The commit record is lost, what it vouches for is not: this is what marks prevent.
        assert bodies(store, "counts", 2) == [b"u1"] * 3
        assert store.bounds("commits", 0).max_offset == 0


@pytest.mark.parametrize("where", ["magic", "kind", "size", "position", "crc", "payload"])
def test_a_damaged_byte_in_the_middle_is_refused_with_file_and_offset(
    tmp_path: Path, where: str
) -> None:
    source = written(tmp_path / "source", [False, False, True, False])
    offset = {"magic": 0, "kind": 5, "size": 8, "position": 17, "crc": 41, "payload": 100}[where]
    ends = entry_ends(source.path)
    for entry in ends[1:4]:
        path = copy_store(source.path, tmp_path / "flipped")
        forget_checkpoint(path)
        flip(log_files(path)[0], entry + offset)
        before = log_bytes(path)
        with pytest.raises(CorruptLogError, match=f"{log_files(path)[0]}.* byte {entry} "):
            MessageStore.open(path, BIG)
        assert log_bytes(path) == before


def test_every_flipped_bit_of_an_entry_is_found(tmp_path: Path) -> None:
    source = written(tmp_path / "source", [False, False])
    first, second = entry_ends(source.path)[1:3]
    path = copy_store(source.path, tmp_path / "flipped")
    forget_checkpoint(path)
    file = log_files(path)[0]
    # The two reserved bytes are covered like all others.
    for bit in range(8 * first, 8 * second, 7):
        flip(file, bit // 8, bit % 8)
        with pytest.raises(CorruptLogError):
            MessageStore.open(path, BIG)
        flip(file, bit // 8, bit % 8)
    with MessageStore.open(path, BIG) as store:
        assert contents(store) == source.history[max(source.history)]


def test_damage_before_the_checkpoint_fails_the_read_of_that_entry_alone(tmp_path: Path) -> None:
    source = written(tmp_path, [False] * 10)
    file = log_files(tmp_path)[0]
    entry = entry_ends(tmp_path)[6]
    flip(file, entry + 70)
    with MessageStore.open(tmp_path, BIG) as store:
        with pytest.raises(CorruptLogError, match=f"{file}: the entry at byte {entry} "):
            store.read("lines", 0, 6, 2)
        with pytest.raises(CorruptLogError):
            store.read_at(entry + HEADER_SIZE)
        whole = source.history[max(source.history)]
        assert bodies(store, "lines", 1) == [record[88:90] for record in whole["lines", 1]]
        for offset in (0, 4, 8, 18):
            assert store.read("lines", 0, offset, 2).count == 2


def test_a_flip_in_what_was_never_synced_is_a_torn_tail(tmp_path: Path) -> None:
    lazy = settings(flush="async")
    with MessageStore.open(tmp_path / "a", lazy) as store:
        first = [store.append([append_of("lines", 0, [b"%d" % n])]) for n in range(20)]
        results = [future.result()[0] for future in first]
        path = copy_store(tmp_path / "a", tmp_path / "b")
    file = log_files(path)[0]
    content = file.read_bytes()
    entries = [result.first_position - HEADER_SIZE for result in results]
    synced = [parse_header(content, at, at) for at in entries]
    # The last entry that no later one vouches for: a power cut may lose it, and what follows.
    last = max(entry.synced for entry in synced if entry is not None)
    victim = min(at for at in entries if at >= last)
    flip(file, victim + HEADER_SIZE + 3)
    with MessageStore.open(path, lazy) as store:
        assert store.statistics().end == victim


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF, 100_000, 1])
def test_a_wrong_length_is_refused_without_reading_for_it(tmp_path: Path, size: int) -> None:
    written(tmp_path, [False, False])
    forget_checkpoint(tmp_path)
    file = log_files(tmp_path)[0]
    content = bytearray(file.read_bytes())
    content[8:12] = size.to_bytes(4, "little")
    file.write_bytes(bytes(content))
    with pytest.raises(CorruptLogError):
        MessageStore.open(tmp_path, BIG)


def test_zeros_behind_the_last_entry_are_cut(tmp_path: Path) -> None:
    source = written(tmp_path, [False, True])
    content = log_bytes(tmp_path)
    log_files(tmp_path)[0].write_bytes(content + bytes(5000))
    with MessageStore.open(tmp_path, BIG) as store:
        assert contents(store) == source.history[max(source.history)]
    assert log_bytes(tmp_path) == content


@pytest.mark.parametrize("sector", range(4))
def test_a_sector_of_the_last_entry_that_stayed_zero_rejects_the_entry(
    tmp_path: Path, sector: int
) -> None:
    with MessageStore.open(tmp_path, BIG) as store:
        store.append([append_of("lines", 0, [b"whole"])]).result()
        end = store.statistics().end
        store.append([append_of("lines", 0, [b"x" * 1900])]).result()
    forget_checkpoint(tmp_path)
    content = bytearray(log_bytes(tmp_path))
    content[end + 512 * sector : end + 512 * sector + 512] = bytes(
        len(content[end + 512 * sector : end + 512 * sector + 512])
    )
    log_files(tmp_path)[0].write_bytes(bytes(content))
    with MessageStore.open(tmp_path, BIG) as store:
        assert bodies(store, "lines", 0) == [b"whole"]


def test_a_shortened_segment_in_the_middle_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [False] * 10, SMALL)
    files = log_files(tmp_path)
    assert len(files) > 3
    files[1].write_bytes(files[1].read_bytes()[:-3])
    with pytest.raises(CorruptLogError, match=f"{files[1]} ends at position .* 3 bytes are miss"):
        MessageStore.open(tmp_path, SMALL)


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [False] * 10, SMALL)
    log_files(tmp_path)[1].unlink()
    with pytest.raises(CorruptLogError):
        MessageStore.open(tmp_path, SMALL)


def _flip_index(path: Path) -> None:
    file = min(path.glob("index/lines/0-*/*.idx"))
    flip(file, 21)


def _shorten_index(path: Path) -> None:
    file = max(path.glob("index/lines/0-*/*.idx"))
    file.write_bytes(file.read_bytes()[:-1])


def _flip_checkpoint(path: Path) -> None:
    flip(path / "checkpoint", 40)


def _halve_checkpoint(path: Path) -> None:
    file = path / "checkpoint"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _lose_index(path: Path) -> None:
    shutil.rmtree(path / "index")


def _move_checkpoint(path: Path) -> None:
    file = path / "checkpoint"
    body = file.read_bytes()[9:].replace(b'"position":', b'"position":1')
    file.write_bytes(b"%08x\n%s" % (zlib.crc32(body), body))


def _step_back_checkpoint(path: Path) -> None:
    file = path / "checkpoint"
    body = b'{"position":3,"file_units":4,"queues":[]}'
    file.write_bytes(b"%08x\n%s" % (zlib.crc32(body), body))


@pytest.mark.parametrize(
    "damage",
    [
        forget_checkpoint,
        _flip_checkpoint,
        _halve_checkpoint,
        _move_checkpoint,
        _step_back_checkpoint,
        _flip_index,
        _shorten_index,
        _lose_index,
    ],
)
def test_derived_files_are_made_again_from_the_log(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    source = written(tmp_path, [False, True] * 6, SMALL)
    before = log_bytes(tmp_path)
    damage(tmp_path)
    for _ in range(2):
        with MessageStore.open(tmp_path, SMALL) as store:
            assert contents(store) == source.history[max(source.history)]
    assert log_bytes(tmp_path) == before
    with MessageStore.open(tmp_path, SMALL) as store:
        assert store.statistics().recovery.checked_bytes == 0


def test_an_older_checkpoint_only_costs_time(tmp_path: Path) -> None:
    written(tmp_path, [False, True], SMALL)
    old = (tmp_path / "checkpoint").read_bytes()
    with MessageStore.open(tmp_path, SMALL) as store:
        for number in range(10, 16):
            write_some(store, number, unit=number % 2 == 0)
        held = contents(store)
    (tmp_path / "checkpoint").write_bytes(old)
    with MessageStore.open(tmp_path, SMALL) as store:
        assert contents(store) == held
        assert store.statistics().recovery.checked_from > 0


def test_a_checkpoint_of_a_longer_log_never_comes_back(tmp_path: Path) -> None:
    written(tmp_path, [False] * 6)
    ends = entry_ends(tmp_path)
    cut_log(tmp_path, ends[3])
    with MessageStore.open(tmp_path, BIG) as store:
        held = contents(store)
        # As large as what was cut: the old checkpoint's position is an entry's end again.
        while store.statistics().end < ends[-1]:
            store.append([append_of("other", 0, [b"xx"] * 2)]).result()
        assert store.statistics().end == ends[-1]
        held["other", 0] = contents(store)["other", 0]
        copy_store(tmp_path, tmp_path.parent / "killed")
    with MessageStore.open(tmp_path.parent / "killed", BIG) as store:
        assert contents(store) == held


def test_a_clean_close_leaves_nothing_to_check(tmp_path: Path) -> None:
    written(tmp_path, [False, True, False])
    with MessageStore.open(tmp_path, BIG) as store:
        assert store.statistics().recovery.checked_bytes == 0
        assert store.statistics().checkpoint == store.statistics().end


def test_leftovers_are_ignored(tmp_path: Path) -> None:
    source = written(tmp_path, [False, True], SMALL)
    end = max(source.history)
    (tmp_path / "checkpoint.tmp").write_bytes(b"half")
    (tmp_path / "log" / f"{end:020d}.log").write_bytes(b"")
    (tmp_path / "log" / "notes.log").write_bytes(b"not ours")
    (tmp_path / "index" / "gone" / "0-0").mkdir(parents=True)
    (tmp_path / "staging" / "job").mkdir(exist_ok=True)
    (tmp_path / "staging" / "job" / "1-2.part").write_bytes(b"")
    (tmp_path / "staging" / "job" / "1-1-1-1-1.part").write_bytes(b"torn")
    with MessageStore.open(tmp_path, SMALL) as store:
        assert contents(store) == source.history[end]
    assert not (tmp_path / "index" / "gone").exists()


def test_bytes_that_look_like_an_entry_in_a_message_do_no_harm(tmp_path: Path) -> None:
    written(tmp_path / "a", [False])
    inner = log_bytes(tmp_path / "a")
    with MessageStore.open(tmp_path / "b", BIG) as store:
        store.append([append_of("lines", 0, [inner, b"HRLE" * 50])]).result()
    forget_checkpoint(tmp_path / "b")
    log_files(tmp_path / "b")[0].write_bytes(log_bytes(tmp_path / "b")[:-1])
    with MessageStore.open(tmp_path / "b", BIG) as store:
        assert store.queues() == []
