"""Appending, rolling and reading a queue's compaction log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.errors import InvalidParameterError, NotFoundError
from headrace.protocol.stamps import tag_hashes
from headrace.store.compaction import log_files
from headrace.store.compaction.log_files import OpenFiles
from headrace.store.compaction.manifest import ReadStatus
from tests.store.compaction.samples import (
    append,
    decode,
    files,
    open_log,
    records_of,
    settings,
    survivors,
)


def test_what_is_appended_is_read_back_byte_by_byte(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    records = records_of([(0, "a", "1"), (1, "b", None), (2, None, "x" * 1000)])
    log.append(records)
    read = log.read(0, 10, 1 << 20)
    assert (read.status, read.count, read.next_offset) == (ReadStatus.FOUND, 3, 3)
    assert (read.min_offset, read.max_offset) == (0, 3)
    assert b"".join(read.slices) == bytes(records.data)
    assert log.statistics().keyless == 1
    assert log.statistics().tombstones == 1
    log.close()


def test_a_log_leaves_no_file_before_its_first_record(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    assert (log.min_offset, log.next_offset, log.durable_offset) == (0, 0, 0)
    assert log.read(0, 1, 1).status is ReadStatus.AT_END
    assert log.read(1, 1, 1).status is ReadStatus.BEYOND
    log.roll()
    log.sync()
    log.close()
    assert not (tmp_path / "q").exists()


def test_behaviour_3_records_are_in_offset_order_and_contiguous(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    for i in range(50):
        append(log, (f"k{i}", f"v{i}"))
    log.roll()
    rows = log.units(0, 50)
    assert rows["offset"].tolist() == list(range(50))
    [data] = (tmp_path / "q").glob("*.data")
    # Nothing lies between two appends but the 44 bytes of an entry's header.
    assert (np.diff(rows["at"]) == rows["size"][:-1] + 44).all()
    assert data.stat().st_size == int(rows["at"][-1] + rows["size"][-1])
    log.close()


def test_behaviour_23_the_index_carries_the_queue_offset_and_the_log_position(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    made = records_of([(7, "a", "1"), (9, "b", "2")], tags=["red", None])
    log.append(made)
    rows = log.units(0, 100)
    assert rows["offset"].tolist() == [7, 9]
    assert rows["log_position"].tolist() == [107_000, 109_000]
    assert rows["tag"].tolist() == tag_hashes(made).tolist()
    assert log.units(8, 9).tolist() == []
    assert log.units(8, 10)["offset"].tolist() == [9]
    log.append(records_of([(11, "a", "1")]), np.array([5], np.int64))
    assert log.units(11, 12)["log_position"].tolist() == [5]
    log.close()


def test_behaviour_26_an_offset_that_is_missing_gives_the_next_larger_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    for base in (101, 201, 301):
        log.append(records_of([(base + i, f"k{base + i}", "v") for i in range(10)]))
        log.roll()
    for asked, given in [(0, 101), (101, 101), (105, 105), (111, 201), (120, 201), (310, 310)]:
        assert decode(log.read(asked, 1, 1).slices)[0][0] == given
    assert log.read(311, 1, 1).status is ReadStatus.AT_END
    beyond = log.read(600, 1, 1)
    assert (beyond.status, beyond.next_offset) == (ReadStatus.BEYOND, 311)
    assert [one[0] for one in decode(log.read(109, 4, 1 << 20).slices)] == [109, 110, 201, 202]
    log.close()


def test_behaviour_27_offsets_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    log.append(records_of([(5, "a", "1")]))
    for offsets in ([5], [4], [7, 7], [8, 7]):
        with pytest.raises(InvalidParameterError, match="next offset is 6"):
            log.append(records_of([(offset, "a", "2") for offset in offsets]))
    assert survivors(log) == [(5, "a", "1")]
    log.close()


def test_a_read_gives_one_record_however_large_it_is(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q", settings(file_size=1000))
    append(log, ("small", "v"), ("large", "x" * 5000), ("next", "v"))
    assert log.statistics().files == 3
    assert [one[1] for one in decode(log.read(0, 10, 10).slices)] == ["small"]
    assert [one[1] for one in decode(log.read(1, 10, 10).slices)] == ["large"]
    assert len(survivors(log)) == 3
    log.close()


@pytest.mark.parametrize("restart", [False, True])
def test_gaps_and_offsets_beyond_two_to_the_thirty_one(tmp_path: Path, restart: bool) -> None:
    log = open_log(tmp_path / "q")
    offsets = [0, (1 << 31) - 1, (1 << 31) + 5, 1 << 40, (1 << 62) + 1]
    for offset in offsets:
        log.append(records_of([(offset, f"k{offset}", "v")], stored=0))
    if restart:
        log.close()
        log = open_log(tmp_path / "q")
    assert [one[0] for one in survivors(log)] == offsets
    assert decode(log.read(1 << 32, 1, 1).slices)[0][0] == 1 << 40
    assert log.next_offset == (1 << 62) + 2
    log.close()


@pytest.mark.parametrize("size", [0, 1, 30_000])
def test_keys_of_any_length(tmp_path: Path, size: int) -> None:
    log = open_log(tmp_path / "q")
    append(log, ("k" * size, "1"), ("k" * size + "j", "2"))
    log.close()
    log = open_log(tmp_path / "q")
    assert [one[2] for one in survivors(log)] == ["1", "2"]
    log.close()


def test_a_tag_filter_skips_records_without_giving_them(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    made = records_of([(i, f"k{i}", "v") for i in range(6)], tags=["a", "b", "a", "b", "b", "a"])
    red = frozenset({int(tag_hashes(made)[0])})
    log.append(made)
    log.roll()
    log.append(records_of([(9, "k9", "v")], tags=["b"]))
    assert [one[0] for one in decode(log.read(1, 10, 1 << 20, red).slices)] == [2, 5]
    read = log.read(1, 1, 1 << 20, red)
    assert (read.count, read.next_offset) == (1, 5)
    none = log.read(6, 10, 1 << 20, red)
    assert (none.status, none.next_offset) == (ReadStatus.NO_MATCH, 10)
    log.close()


def test_store_times_and_offsets_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    for base in (10, 20, 30):
        log.append(records_of([(base + i, "k", "v") for i in range(3)], stored=0))
        log.roll()
    assert log.store_time(21) == 21
    for missing in (9, 13, 33):
        with pytest.raises(NotFoundError, match="does not hold"):
            log.store_time(missing)
    for time, lower, upper in [(0, 10, 10), (11, 11, 11), (15, 20, 12), (32, 32, 32), (99, 33, 32)]:
        assert log.offset_at(time, upper=False) == lower
        assert log.offset_at(time, upper=True) == upper
    log.close()


def test_many_logs_hold_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle queues hold none, busy ones a bounded number."""
    monkeypatch.setattr(log_files, "_open_files", OpenFiles(8))
    before = len(list(Path("/proc/self/fd").iterdir()))
    logs = [open_log(tmp_path / str(i)) for i in range(40)]
    for log in logs:
        append(log, ("a", "1"))
    assert len(list(Path("/proc/self/fd").iterdir())) - before == 3 * 8
    for log in logs:
        assert log.read(0, 1, 1).count == 1
        log.sync()
        assert log.durable_offset == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    for log in logs:
        append(log, ("a", "1"))
        log.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_delete_removes_the_folder_and_views_stay_valid(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    append(log, ("a", "1"))
    read = log.read(0, 1, 1)
    log.delete()
    assert not (tmp_path / "q").exists()
    assert decode(read.slices) == [(0, "a", "1")]
    again = open_log(tmp_path / "q")
    assert survivors(again) == []
    append(again, ("b", "2"))
    assert survivors(again) == [(0, "b", "2")]
    assert "MANIFEST" in files(tmp_path / "q")
    again.close()
