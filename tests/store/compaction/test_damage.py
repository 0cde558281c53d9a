"""T2 to T6, T10 to T14 on a compaction log that is appended to: damage, full disks, leftovers."""

from __future__ import annotations

import contextlib
import errno
import zlib
from pathlib import Path

import pytest

from headrace.errors import CorruptLogError, StoreError
from headrace.store.entries import HEADER_SIZE
from tests.store.compaction.fault_samples import (
    KEY,
    QueueHistory,
    changed,
    found_of,
    raw_records,
    read_folder,
    tree,
)
from tests.store.compaction.samples import open_log, records_of, settings
from tests.store.faulty_files import FailingAt, FailingReads
from tests.store.oracles import Found, check_log, check_same_twice, offset_of

SECTOR = 512


@pytest.fixture
def history() -> QueueHistory:
    return QueueHistory()


def fill(folder: Path, history: QueueHistory, sizes: list[int]) -> list[int]:
    """Append one record of each size, each synced; where their entries end in the active file."""
    log, ends = open_log(folder), [0]
    for number, size in enumerate(sizes):
        assert history.put(log, (f"k{number}", (f"{number}." * size)[:size]))
        ends.append(data_file(folder).stat().st_size)
    log.close()
    return ends


def data_file(folder: Path) -> Path:
    return max(folder.glob("*.data"))


def saved(folder: Path) -> dict[str, bytes]:
    return tree(folder)


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_t02_the_data_file_is_cut_at_every_byte(tmp_path: Path, history: QueueHistory) -> None:
    """T2: whole records stay, index and sidecar follow, the next append goes on."""
    ends = fill(tmp_path, history, [30, 5, 20, 5])
    files, name = saved(tmp_path), data_file(tmp_path).name
    for step in history.steps:
        step.outcome = "open"
    content = files[name]
    for position in range(len(content), ends[1] - 1, -1):
        restore(tmp_path, files | {name: content[:position]})
        kept = max(number for number, end in enumerate(ends) if end <= position)
        log = open_log(tmp_path)
        assert check_log(history, found_of(log)) == kept
        if position % 8 == 0:
            after = QueueHistory([*history.steps[:kept]])
            assert after.put(log, ("k0", "next"))
            assert check_log(after, found_of(log)) == kept + 1
        log.close()
        if position % 8 == 0:
            check_same_twice(lambda: read_folder(tmp_path), lambda: tree(tmp_path))


@pytest.mark.parametrize("kind", [".index", ".keys", ".synced"])
def test_t02_what_is_derived_is_cut_at_every_byte(
    tmp_path: Path, history: QueueHistory, kind: str
) -> None:
    """T2: each alone, at every byte: made again to match."""
    fill(tmp_path, history, [30, 5, 20])
    files = saved(tmp_path)
    [name] = [name for name in files if kind in name]
    for position in range(len(files[name]) - 1, -1, -1 if len(files[name]) < 300 else -7):
        restore(tmp_path, files | {name: files[name][:position]})
        assert check_log(history, read_folder(tmp_path)) == 3


@pytest.mark.parametrize("old", [False, True])
def test_t03_sectors_of_the_last_record_are_zero_or_old(
    tmp_path: Path, history: QueueHistory, old: bool
) -> None:
    """T3: the record is rejected, what was noted as synced before it stays."""
    ends = fill(tmp_path / "a", history, [40, 40])
    files = saved(tmp_path / "a")
    fill(tmp_path / "b", QueueHistory(), [40, 40, 2999])
    log = open_log(tmp_path / "a")
    assert history.put(log, ("k2", "." * 3000))
    log.close()
    history.steps[2].outcome = "open"
    name = data_file(tmp_path / "a").name
    content = data_file(tmp_path / "a").read_bytes()
    other = data_file(tmp_path / "b").read_bytes().ljust(len(content), b"!")
    before = other if old else bytes(len(content))
    for sector in range(ends[2] // SECTOR * SECTOR, len(content), SECTOR):
        begin, end = max(sector, ends[2]), min(sector + SECTOR, len(content))
        torn = content[:begin] + before[begin:end] + content[end:]
        for tail in (b"", bytes(4000)):
            restore(tmp_path / "a", files | {name: torn + tail})
            assert check_log(history, read_folder(tmp_path / "a")) == (2 if torn != content else 3)


def closed_file(folder: Path, history: QueueHistory) -> tuple[Path, list[int]]:
    """A closed data file of five entries and an active one; where the entries begin."""
    ends = fill(folder, history, [20] * 5)
    file = data_file(folder)
    log = open_log(folder)
    log.roll()
    assert history.put(log, ("last", "x"))
    log.close()
    return file, ends


def test_t04_every_bit_of_a_record_in_the_middle_is_flipped(
    tmp_path: Path, history: QueueHistory
) -> None:
    """T4: the read names file and byte, the records around it stay, nothing is cut."""
    file, ends = closed_file(tmp_path, history)
    content, files = file.read_bytes(), saved(tmp_path)
    for bit in range(8 * ends[2], 8 * ends[3], 29):
        restore(tmp_path, files)
        changed(file, lambda block, bit=bit: _flip(block, bit))  # type: ignore[misc]
        log = open_log(tmp_path)
        with pytest.raises(CorruptLogError, match=f"{file}.* byte {ends[2]} "):
            log.read(2, 1, 1 << 20)
        for offset in (0, 1, 3, 4, 5):
            read = log.read(offset, 1, 1 << 20)
            assert (read.count, read.next_offset) == (1, offset + 1)
        log.close()
        assert len(file.read_bytes()) == len(content)


def _flip(block: bytearray, bit: int) -> None:
    block[bit // 8] ^= 1 << bit % 8


def test_t04_damage_of_what_was_synced_in_the_active_file_is_told(
    tmp_path: Path, history: QueueHistory
) -> None:
    """T4: an entry that a later one vouches for is damage, never the end of the log."""
    ends = fill(tmp_path, history, [20] * 5)
    file = data_file(tmp_path)
    for path in tmp_path.glob("*.synced"):
        path.unlink()
    changed(file, lambda block: _flip(block, 8 * ends[2] + 700))
    before = tree(tmp_path)
    with pytest.raises(CorruptLogError, match=f"{file}.* byte {ends[2]} "):
        open_log(tmp_path)
    assert {name: tree(tmp_path)[name] for name in (file.name, "MANIFEST")} == {
        name: before[name] for name in (file.name, "MANIFEST")
    }


def test_t04_a_read_error_is_told(tmp_path: Path, history: QueueHistory) -> None:
    """T4: nothing is cut because the disk does not answer."""
    fill(tmp_path, history, [20] * 3)
    for path in tmp_path.glob("*.synced"):
        path.unlink()
    content = data_file(tmp_path).read_bytes()
    with pytest.raises(StoreError, match="could not read"):
        open_log(tmp_path, ops=FailingReads())
    assert data_file(tmp_path).read_bytes() == content
    assert check_log(history, read_folder(tmp_path)) == 3


@pytest.mark.parametrize("name", ["MANIFEST", "MANIFEST.copy"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "lose"])
def test_t05_a_manifest_is_checked_and_has_a_copy(
    tmp_path: Path, history: QueueHistory, name: str, damage: str
) -> None:
    """T5: one of the two may be damaged at any byte; both, and it is told."""
    closed_file(tmp_path, history)
    files = saved(tmp_path)
    size = len(files[name])
    for at in range(0, size if damage in ("flip", "cut") else 1, 13):
        content = bytearray(files[name])
        if damage == "flip":
            content[at] ^= 1 << at % 8
        elif damage == "cut":
            del content[at:]
        restore(tmp_path, files | {name: b"" if damage == "empty" else bytes(content)})
        if damage == "lose":
            (tmp_path / name).unlink()
        assert check_log(history, read_folder(tmp_path)) == 6
    restore(tmp_path, files | {"MANIFEST": b"", "MANIFEST.copy": b"x"})
    before = tree(tmp_path)
    with pytest.raises(CorruptLogError, match=f"{tmp_path}/MANIFEST is damaged"):
        open_log(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("size", [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 100_000])
@pytest.mark.parametrize("place", ["entry", "record"])
def test_t06_a_length_is_wrong(
    tmp_path: Path, history: QueueHistory, size: int, place: str
) -> None:
    """T6: a bounded error, for the entry's own length and for that of a record inside."""
    file, ends = closed_file(tmp_path, history)
    at = ends[1]

    def change(block: bytearray) -> None:
        if place == "entry":
            block[at + 8 : at + 12] = size.to_bytes(4, "little")
            return
        block[at + HEADER_SIZE : at + HEADER_SIZE + 4] = size.to_bytes(4, "big")

    changed(file, change)
    log = open_log(tmp_path)
    with pytest.raises(CorruptLogError, match=f"{file}.* byte {at} "):
        log.read(1, 1, 1 << 20)
    assert log.read(2, 10, 1 << 20).count == 4
    log.close()


SWEEP = {"write": 12, "sync": 8, "open": 12, "sync_directory": 8, "rename": 8, "truncate": 1}


#: Both errors once and for good; the other half of the combinations is for `make soak`.
CODES = [
    (errno.EIO, False),
    (errno.ENOSPC, True),
    pytest.param(errno.EIO, True, marks=pytest.mark.soak),
    pytest.param(errno.ENOSPC, False, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("code", "for_good"), CODES)
@pytest.mark.parametrize("name", list(SWEEP))
def test_t10_t13_any_operation_fails(tmp_path: Path, name: str, for_good: bool, code: int) -> None:
    """T10 to T13: append, sync and roll, with the N-th operation failing, for every N."""
    failed = 0
    for number in range(1, SWEEP[name] + 1):
        folder = tmp_path / f"{number}"
        ops = FailingAt(name, number, code, for_good=for_good, partial=True)
        history = QueueHistory()
        log = open_log(folder, settings(file_size=600), ops=ops)
        assert history.put(log, ("k", "0"))
        ops.armed = True
        for turn in range(8):
            history.put(log, (f"k{turn}", "x" * 80), (f"k{turn + 1}", "y"))
            check_log(history, found_of(log))
        ops.armed = False
        before = len(history.steps)
        outcomes = [history.put(log, ("k", f"again {turn}")) for turn in range(3)]
        # Either it goes on, or it has said that it does not.
        assert len(set(outcomes)) == 1, outcomes
        if not outcomes[0]:
            assert {"sync", "sync_directory"} & ops.failed
            del history.steps[before:]
        check_log(history, found_of(log))
        with contextlib.suppress(StoreError):
            log.close()
        failed += bool(ops.failed)
        check_same_twice(
            lambda folder=folder, history=history: _checked(folder, history),  # type: ignore[misc]
            lambda folder=folder: tree(folder),  # type: ignore[misc]
        )
    assert failed or name == "truncate"


def _checked(folder: Path, history: QueueHistory) -> Found:
    found = read_folder(folder, file_size=600)
    check_log(history, found)
    return found


def test_t14_leftovers_are_removed_and_never_served(tmp_path: Path, history: QueueHistory) -> None:
    """T14: other generations, larger ones too, temporary files, empty and unknown files, folders."""
    file, _ = closed_file(tmp_path, history)
    content = file.read_bytes()
    for name in (
        f"{0:020d}-99.data",
        f"{0:020d}-99.index",
        f"{3:020d}-98.data.delete",
        "MANIFEST.tmp",
        f"{0:020d}-1.keys.tmp",
        f"{77:020d}",
        "unknown",
    ):
        (tmp_path / name).write_bytes(content * 2)
    (tmp_path / f"{9:020d}-97.data").write_bytes(b"")
    (tmp_path / "compacting").mkdir()
    (tmp_path / "compacting" / f"{0:020d}").write_bytes(content * 3)
    before = set(tree_names(tmp_path))
    assert check_log(history, read_folder(tmp_path)) == 6
    left = set(tree_names(tmp_path))
    assert left < before
    assert not [name for name in left if "99" in name or "98" in name or "97" in name]
    assert not left & {"MANIFEST.tmp", "unknown", "compacting", f"{77:020d}"}


def tree_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_t19_an_older_note_of_what_was_synced(tmp_path: Path, history: QueueHistory) -> None:
    """T19: lost, older, of another file, half written: the same result."""
    fill(tmp_path, history, [20] * 2)
    [note] = tmp_path.glob("*.synced")
    older = note.read_bytes()
    log = open_log(tmp_path)
    for number in range(6):
        assert history.put(log, (f"k{number}", "y" * 30))
    log.close()
    newest = note.read_bytes()
    for content in (None, b"", older, newest[:100], newest[512:] + newest[:512], b"\0" * 1024):
        if content is None:
            note.unlink()
        else:
            note.write_bytes(content)
        assert check_log(history, read_folder(tmp_path)) == 8


@pytest.mark.parametrize("size", [0, 1, 64 * 1024])
def test_keys_of_any_size(tmp_path: Path, size: int) -> None:
    """No key, one byte, and more than a property's length field can tell: all are told apart."""
    history = QueueHistory()
    log = open_log(tmp_path)
    key = "k" * min(size, 32_000)
    assert history.put(log, (key or None, "1"), ("other", "2"), (key or None, "3"))
    log.close()
    assert check_log(history, read_folder(tmp_path)) == 3


def test_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """Gaps and offsets above 2^31 and 2^40."""
    log = open_log(tmp_path)
    offsets = [0, 2**31 - 1, 2**31, 2**32 + 5, 2**40]
    for offset in offsets:
        log.append(records_of([(offset, "k", "v")]))
    assert [offset_of(record) for record in raw_records(log)] == offsets
    assert log.read(2**31 + 1, 1, 1 << 20).next_offset == 2**32 + 6
    log.close()
    found = read_folder(tmp_path)
    assert found.next_offsets[KEY] == 2**40 + 1
    assert zlib.crc32(b"".join(found.records[KEY])) != 0
