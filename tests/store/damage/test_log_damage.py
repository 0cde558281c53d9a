"""T1, T3 to T6 and T14, T19 on the commit log: files that a crash or a disk has changed.

The numbers are those of the table in ``docs/explanation/faults.md``.
The oracles are in ``oracles.py``.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import CorruptLogError, StoreError
from headrace.store import MessageStore
from headrace.store.damage.examination import examine_store
from headrace.store.entries import HEADER_SIZE, parse_header
from tests.store.faulty_files import FailingReads
from tests.store.oracles import (
    Found,
    History,
    check_damage_is_told,
    check_log,
    check_same_twice,
    found_in,
)
from tests.store.samples import UnsyncedOps, append_of, copy_store, log_bytes, log_files, settings

SECTOR = 512
BIG = settings(index_file_units=4)


@pytest.fixture
def history() -> History:
    return History()


def opened(path: Path) -> MessageStore:
    return MessageStore.open(path, BIG, ops=UnsyncedOps())


def fill(path: Path, history: History, sizes: list[int]) -> list[int]:
    """Append one message of each size; where the entries end."""
    ends = [0]
    with opened(path) as store:
        for number, size in enumerate(sizes):
            body = (b"%d." % number * size)[:size]
            assert history.append(store, append_of("lines", number % 2, [body], b"KEYS\x01k\x02"))
            ends.append(store.statistics().end)
    (path / "checkpoint").unlink()
    return ends


def read_back(path: Path) -> Found:
    with opened(path) as store:
        return found_in(store)


def forget_acknowledgements(history: History, kept: int) -> None:
    """From here on nothing behind the first steps is said to be kept."""
    for step in history.steps[kept:]:
        step.outcome = "open"


def flip(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_t01_the_log_is_cut_at_every_byte_of_the_last_three_records(
    tmp_path: Path, history: History
) -> None:
    """T1: opens, keeps exactly the whole records, and the next append goes on."""
    ends = fill(tmp_path, history, [30, 10, 20, 10])
    [file], content = log_files(tmp_path), log_bytes(tmp_path)
    forget_acknowledgements(history, 1)
    for position in range(len(content), ends[1] - 1, -1):
        file.write_bytes(content[:position])
        (tmp_path / "checkpoint").unlink(missing_ok=True)
        kept = max(number for number, end in enumerate(ends) if end <= position)
        with opened(tmp_path) as store:
            assert check_log(history, found_in(store)) == kept
            assert store.statistics().recovery.cut_bytes == position - ends[kept]
            if position % 10 == 0:
                after = History([*history.steps[:kept]])
                assert after.append(store, append_of("lines", kept % 2, [b"next"]))
                assert check_log(after, found_in(store)) == kept + 1
        if position % 10 == 0:
            check_same_twice(lambda: read_back(tmp_path), lambda: log_bytes(tmp_path))
        file.write_bytes(content)


@pytest.mark.parametrize("old", [False, True])
def test_t03_sectors_of_the_last_record_are_zero_or_old(
    tmp_path: Path, history: History, old: bool
) -> None:
    """T3: each sector in turn never reached the disk: the record is rejected, the rest stays."""
    ends = fill(tmp_path, history, [40, 40, 3000])
    [file], content = log_files(tmp_path), log_bytes(tmp_path)
    forget_acknowledgements(history, 2)
    # Old bytes: an entry that another log had at this very place.
    other = History()
    fill(tmp_path / "other", other, [40, 40, 2999])
    before = log_bytes(tmp_path / "other").ljust(len(content), b"!") if old else bytes(len(content))
    first = ends[2] // SECTOR * SECTOR
    for sector in range(first, len(content), SECTOR):
        begin, end = max(sector, ends[2]), min(sector + SECTOR, len(content))
        torn = content[:begin] + before[begin:end] + content[end:]
        if torn == content:
            continue
        for tail in (b"", bytes(5000)):  # as it is, or in a file that was made larger before
            file.write_bytes(torn + tail)
            (tmp_path / "checkpoint").unlink(missing_ok=True)
            with opened(tmp_path) as store:
                assert check_log(history, found_in(store)) == 2


def test_t04_every_bit_of_a_record_in_the_middle_is_flipped(
    tmp_path: Path, history: History
) -> None:
    """T4: told with file and byte, the records behind it stay, nothing is cut."""
    ends = fill(tmp_path, history, [20] * 5)
    [file], content = log_files(tmp_path), log_bytes(tmp_path)
    with opened(tmp_path) as store:  # its checkpoint vouches for all of it
        assert check_log(history, found_in(store)) == 5
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    bits = range(8 * ends[2], 8 * ends[3])
    entry = content[ends[2] : ends[3]]
    header = parse_header(content, ends[2], ends[2])
    assert header is not None
    for bit in range(len(bits)):
        changed = flip(entry, bit)
        fields = zlib.crc32(changed[: HEADER_SIZE - 4])
        stored = int.from_bytes(changed[HEADER_SIZE - 4 : HEADER_SIZE], "little")
        # No bit is without a checksum.
        assert zlib.crc32(changed[HEADER_SIZE:], fields) != stored
    # The whole way, for some bits of each field: with the checkpoint, and with the log alone.
    for bit in [*bits[:352:11], *bits[352::83]]:
        file.write_bytes(flip(content, bit))
        (tmp_path / "checkpoint").write_bytes(checkpoint)
        failed = check_damage_is_told(history, lambda: opened(tmp_path), file, ends[2])
        assert failed == [("lines", 0)]
        assert len(log_bytes(tmp_path)) == len(content)
    for bit in bits[::97]:
        file.write_bytes(flip(content, bit))
        (tmp_path / "checkpoint").unlink(missing_ok=True)
        assert check_damage_is_told(history, lambda: opened(tmp_path), file, ends[2]) == []
        assert log_bytes(tmp_path) == flip(content, bit)
        [found] = examine_store(tmp_path).damage
        assert (found.path, found.offset, found.size) == (file, ends[2], ends[3] - ends[2])


def test_t04_a_read_error_is_told_and_nothing_is_cut(tmp_path: Path, history: History) -> None:
    """T4: a disk that does not give its bytes says nothing about them."""
    fill(tmp_path, history, [20] * 3)
    [file], content = log_files(tmp_path), log_bytes(tmp_path)
    with pytest.raises(StoreError, match=f"could not read {file}: Input/output error"):
        MessageStore.open(tmp_path, BIG, ops=FailingReads())
    assert log_bytes(tmp_path) == content
    with opened(tmp_path) as store:
        assert check_log(history, found_in(store)) == 3


@pytest.mark.parametrize("damage", ["flip", "lose", "empty", "garbage"])
def test_t05_what_is_derived_is_made_again(tmp_path: Path, history: History, damage: str) -> None:
    """T5: checkpoint and index files are checked, and made again with the same answers."""
    fill(tmp_path, history, [10] * 30)
    with opened(tmp_path) as store:
        assert check_log(history, found_in(store)) == 30
    victims = [tmp_path / "checkpoint", *sorted(tmp_path.glob("index/*/*/*.idx"))]
    saved = {path: path.read_bytes() for path in victims}
    assert len(victims) > 3
    for victim in victims:
        for path, content in saved.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        _spoil(victim, damage)
        check_same_twice(lambda: read_back(tmp_path), lambda: log_bytes(tmp_path))
        with opened(tmp_path) as store:
            assert check_log(history, found_in(store)) == 30


def test_t05_an_index_file_that_cannot_be_read_is_told(tmp_path: Path, history: History) -> None:
    """T5: nothing is concluded from what the disk does not give."""
    fill(tmp_path, history, [10] * 30)
    read_back(tmp_path)
    file = min(tmp_path.glob("index/*/0-*/*.idx"))
    content = file.read_bytes()
    file.unlink()
    file.mkdir()
    with opened(tmp_path) as store, pytest.raises(StoreError, match=f"could not read {file}"):
        found_in(store)
    file.rmdir()
    file.write_bytes(content)
    with opened(tmp_path) as store:
        assert check_log(history, found_in(store)) == 30


def _spoil(file: Path, damage: str) -> None:
    content = file.read_bytes()
    if damage == "flip":
        file.write_bytes(flip(content, 8 * (len(content) // 2) + 3))
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "garbage":
        file.write_bytes(bytes(range(256)) * 3)
    else:
        file.unlink()


SIZES = [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FF00, 100_000, 2**24]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", ["entry", "record", "body"])
def test_t06_a_length_is_wrong(tmp_path: Path, history: History, size: int, place: str) -> None:
    """T6: zero, negative, huge, past the end: a bounded error, for each length in an entry."""
    ends = fill(tmp_path, history, [50] * 3)
    [file] = log_files(tmp_path)
    content = bytearray(log_bytes(tmp_path))
    at = ends[1]
    if place == "entry":
        content[at + 8 : at + 12] = size.to_bytes(4, "little")
    else:
        inside = at + HEADER_SIZE + (0 if place == "record" else 84)
        content[inside : inside + 4] = size.to_bytes(4, "big")
        fields = zlib.crc32(content[at : at + HEADER_SIZE - 4])
        crc = zlib.crc32(content[at + HEADER_SIZE : ends[2]], fields)
        # A checksum that fits: then the record's own lengths must be refused.
        content[at + HEADER_SIZE - 4 : at + HEADER_SIZE] = crc.to_bytes(4, "little")
    file.write_bytes(bytes(content))
    with pytest.raises(CorruptLogError, match=f"{file}.* byte {at} "):
        opened(tmp_path)
    assert log_bytes(tmp_path) == bytes(content)
    assert examine_store(tmp_path, deep=True).damage


def test_t14_leftovers_are_never_served(tmp_path: Path, history: History) -> None:
    """T14: temporary, empty, renamed and unknown files are ignored or removed."""
    fill(tmp_path, history, [10] * 3)
    end, content = len(log_bytes(tmp_path)), log_bytes(tmp_path)
    (tmp_path / "checkpoint.tmp").write_bytes(b"half")
    (tmp_path / "log" / f"{end:020d}.log").write_bytes(b"")
    (tmp_path / "log" / f"{0:020d}.log.repair").write_bytes(content * 3)
    (tmp_path / "log" / f"{end:020d}.log.delete").write_bytes(content)
    (tmp_path / "log" / "notes.log").write_bytes(content)
    (tmp_path / "compacting").mkdir()
    (tmp_path / "compacting" / f"{0:020d}").write_bytes(content * 3)
    (tmp_path / "index" / "gone" / "0-0").mkdir(parents=True)
    (tmp_path / "staging" / "job").mkdir(parents=True, exist_ok=True)
    (tmp_path / "staging" / "job" / "1-1-1-1-1.part").write_bytes(b"torn")
    with opened(tmp_path) as store:
        assert check_log(history, found_in(store)) == 3
        assert store.queues() == [("lines", 0), ("lines", 1)]


def _lost(path: Path, _other: Path) -> None:
    (path / "checkpoint").unlink()


def _half_written(path: Path, _other: Path) -> None:
    content = (path / "checkpoint").read_bytes()
    (path / "checkpoint").write_bytes(content[: len(content) // 2])


def _of_another_store(path: Path, other: Path) -> None:
    shutil.copy(other / "checkpoint", path / "checkpoint")


def _checksummed(line: bytes, rest: bytes) -> bytes:
    body = line + b"\n" + rest
    return b"%08x\n%s" % (zlib.crc32(body), body)


def _moved(by: bytes) -> Callable[[Path, Path], None]:
    def move(path: Path, _other: Path) -> None:
        line, _, rest = (path / "checkpoint").read_bytes()[9:].partition(b"\n")
        at = line.index(b'"position":') + len(b'"position":')
        (path / "checkpoint").write_bytes(_checksummed(line[:at] + by + line[at:], rest))

    return move


@pytest.mark.parametrize(
    "change", [_lost, _half_written, _of_another_store, _moved(b"1"), _moved(b"-")]
)
def test_t19_a_checkpoint_is_lost_old_ahead_or_of_another_store(
    tmp_path: Path, history: History, change: Callable[[Path, Path], None]
) -> None:
    """T19: the same result, only more work."""
    path, other = tmp_path / "store", History()
    fill(path, history, [10] * 20)
    fill(tmp_path / "other", other, [12] * 9)
    read_back(path)
    read_back(tmp_path / "other")
    before = read_back(path)
    change(path, tmp_path / "other")
    assert read_back(path) == before
    with opened(path) as store:
        assert check_log(history, found_in(store)) == 20


def test_t19_an_older_checkpoint_and_older_indexes(tmp_path: Path, history: History) -> None:
    """T19: what was saved at any earlier moment leads to the same result."""
    older: list[Path] = []
    for number in range(4):
        with opened(tmp_path / "store") as store:
            for _ in range(5):
                assert history.append(store, append_of("lines", 0, [b"%d" % number] * 2))
        older.append(copy_store(tmp_path / "store", tmp_path / f"old{number}"))
    for old in older:
        for name in ("checkpoint", "index"):
            mixed = copy_store(tmp_path / "store", tmp_path / "mixed")
            _replace(old / name, mixed / name)
            with opened(mixed) as store:
                assert check_log(history, found_in(store)) == 20


def _replace(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target)
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
