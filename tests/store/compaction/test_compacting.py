"""Compaction of one queue: the seed's behaviours, and what is broken in RocketMQ's own (B1-B16)."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from hashlib import md5
from pathlib import Path

import msgspec
import pytest

from headrace.errors import CorruptLogError, StoreError
from headrace.protocol.properties import pack_host
from headrace.protocol.records import RecordFields, encode_record, join_records
from headrace.protocol.stamps import stamp_records
from headrace.store.compaction import CompactionReport, QueueLog
from headrace.store.compaction.compactor import RateLimit
from headrace.store.compaction.data_file import ENTRY_BYTES
from headrace.store.compaction.manifest import (
    MANIFEST_NAME,
    Manifest,
    decode_checked,
    encode_checked,
)
from tests.store.compaction.samples import (
    Record,
    TestClock,
    append,
    decode,
    files,
    open_log,
    records_of,
    settings,
    survivors,
)

IMMEDIATE = settings(tombstone_retention=timedelta(0))


def fill(log: QueueLog, count: int, keys: int, *, roll_every: int = 0, width: int = 1) -> None:
    """Append records over some keys, in turn."""
    base = log.next_offset
    step = roll_every or count
    for first in range(base, base + count, step):
        last = min(first + step, base + count)
        log.append(
            records_of([(i, f"k{i % keys}", f"v{i}".ljust(width)) for i in range(first, last)])
        )
        if roll_every:
            log.roll()


def manifest(folder: Path) -> Manifest:
    found = decode_checked((folder / MANIFEST_NAME).read_bytes(), Manifest)
    assert found is not None
    return found


def test_behaviour_5_keys_of_other_queues_never_meet(tmp_path: Path) -> None:
    """The same key in two queues has two survivors."""
    logs = [open_log(tmp_path / str(number)) for number in range(2)]
    for number, log in enumerate(logs):
        append(log, ("same", "old"), ("same", f"new {number}"))
        log.roll()
    for number, log in enumerate(logs):
        log.compact(force=True)
        assert survivors(log) == [(1, "same", f"new {number}")]
        log.close()


def test_behaviour_7_the_active_file_is_left_out_and_nothing_to_do_changes_nothing(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    append(log, ("a", "1"), ("a", "2"))
    assert log.compact(force=True).rounds == 0
    assert len(survivors(log)) == 2
    log.roll()
    append(log, ("b", "1"), ("b", "2"))
    assert log.compact(force=True).records_out == 1
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "q").iterdir()}
    report = log.compact(force=True)
    assert (report.rounds, report.bytes_written) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "q").iterdir()} == before
    assert survivors(log) == [(1, "a", "2"), (2, "b", "1"), (3, "b", "2")]
    log.close()


def test_behaviours_8_to_10_and_14_one_record_a_key_stays_in_the_original_order(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 1000, 17, roll_every=90)
    log.roll()
    whole = survivors(log)
    report = log.compact(force=True)
    kept = survivors(log)
    assert kept == whole[-17:]
    assert (report.rounds, report.records_in, report.records_out) == (1, 1000, 17)
    assert report.map_keys == 17
    assert report.bytes_out < report.bytes_in
    # What was replaced is gone from the disk, too.
    assert len(list((tmp_path / "q").glob("*.data"))) == 1
    log.close()


def test_behaviour_11_the_map_takes_24_bytes_a_slot_whatever_key_and_body_are(
    tmp_path: Path,
) -> None:
    """Replaced: the sixteen bytes are a keyed digest, MD5 is a setting."""
    sizes = []
    for number, (key, body) in enumerate([("k", "v"), ("k" * 5000, "v" * 50_000)]):
        log = open_log(tmp_path / str(number))
        append(log, *((f"{key}{i}", body) for i in range(5)))
        log.roll()
        sizes.append(log.compact(force=True).map_bytes)
        log.close()
    assert sizes[0] == sizes[1]
    assert sizes[0] % 24 == 0


def test_behaviour_13_older_goes_latest_stays_unmapped_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    append(log, ("a", "0"), ("b", "1"), ("c", "2"))
    log.roll()
    log.compact(force=True)
    append(log, ("a", "3"))
    log.roll()
    append(log, ("b", "4"))
    log.compact(force=True)
    # b@1: its newer record is in the active file, which no map covers.
    assert survivors(log) == [(1, "b", "1"), (2, "c", "2"), (3, "a", "3"), (4, "b", "4")]
    log.close()


@pytest.mark.parametrize("capacity", [1, 2, 7, 100])
def test_behaviours_15_to_18_rounds_give_what_an_unbounded_map_gives(
    tmp_path: Path, capacity: int
) -> None:
    chance = random.Random(capacity)
    log = open_log(tmp_path / "q")
    for _ in range(12):
        append(log, *((f"k{chance.randrange(40)}", str(chance.random())) for _ in range(25)))
        log.roll()
    whole = survivors(log, 1000)
    latest = {record[1]: record for record in whole}
    report = log.compact(force=True, map_capacity=capacity)
    assert report.rounds >= 40 / capacity
    assert survivors(log) == sorted(latest.values())
    log.close()


def test_behaviour_17_a_round_goes_on_where_the_last_one_stopped_and_each_makes_progress(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 60, 20, roll_every=10)
    before = 0
    rounds = 0
    while (report := log.compact(force=True, map_capacity=3, max_rounds=1)).rounds:
        rounds += 1
        now = log.statistics().clean_until
        assert now > before
        # Behaviour 16: what lies behind the mapped part is untouched.
        assert [one[0] for one in survivors(log, 1000) if one[0] >= now] == list(range(now, 60))
        before = now
        assert report.map_keys <= 3
    assert rounds >= 20 // 3
    assert [one[0] for one in survivors(log)] == list(range(40, 60))
    log.close()


def test_behaviour_19_progress_survives_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 60, 20, roll_every=10)
    log.compact(force=True, map_capacity=5, max_rounds=1)
    stopped = log.statistics().clean_until
    assert 0 < stopped < 60
    log.close()
    log = open_log(tmp_path / "q")
    assert log.statistics().clean_until == stopped
    log.compact(force=True)
    assert [one[0] for one in survivors(log)] == list(range(40, 60))
    log.close()


def test_behaviours_20_to_22_the_manifest_names_the_files_and_nothing_else_is_left(
    tmp_path: Path,
) -> None:
    """Replaced: names are unique, and one rename swaps data, index and keys together.

    B11: no file needs a mark at its end, as the manifest has its size.
    """
    log = open_log(tmp_path / "q")
    fill(log, 100, 10, roll_every=20)
    append(log, ("live", "x"))
    log.compact(force=True)
    log.sync()
    named = manifest(tmp_path / "q")
    expected = {"MANIFEST", "MANIFEST.copy", f"{named.active}.data", f"{named.active}.synced"}
    expected |= {f"{named.active}.0.index", f"{named.active}.0.keys"}
    for meta in named.files:
        numbered = f"{meta.name}.{meta.derived}"
        expected |= {f"{meta.name}.data", f"{numbered}.index", f"{numbered}.keys"}
        assert (tmp_path / "q" / f"{meta.name}.data").stat().st_size == meta.size > 0
    assert files(tmp_path / "q") == expected
    log.close()


def test_behaviours_25_and_26_survivors_keep_offsets_and_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    records = records_of([(i, f"k{i % 4}", "x" * (i * 7 % 50)) for i in range(40)])
    log.append(records)
    log.roll()
    log.compact(force=True)
    read = log.read(0, 100, 1 << 20)
    assert b"".join(read.slices) == bytes(records.data[int(records.starts[36]) :])
    assert [one[0] for one in decode(log.read(3, 1, 1).slices)] == [36]
    log.close()


def test_b1_more_new_keys_than_the_map_holds_finish(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q", settings(map_bytes=24 * 20))
    fill(log, 500, 250, roll_every=50)
    report = log.compact(force=True)
    assert report.map_bytes <= 24 * 20
    assert report.rounds > 250 // 20
    assert [one[0] for one in survivors(log)] == list(range(250, 500))
    log.close()


@pytest.mark.parametrize("restart", [False, True])
def test_b2_all_closed_records_may_go_and_the_end_stays(tmp_path: Path, restart: bool) -> None:
    log = open_log(tmp_path / "q", IMMEDIATE)
    append(log, ("a", "1"), ("b", "1"), ("a", None), ("b", None))
    log.roll()
    log.compact(force=True)
    if restart:
        log.close()
        log = open_log(tmp_path / "q", IMMEDIATE)
    assert survivors(log) == []
    assert (log.min_offset, log.next_offset) == (4, 4)
    assert log.compact(force=True).rounds == 0
    append(log, ("a", "2"))
    assert survivors(log) == [(4, "a", "2")]
    assert log.min_offset == 4
    log.close()


def test_b7_the_first_offset_and_search_by_time_are_the_compaction_logs_own(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 100, 10)
    log.roll()
    log.compact(force=True)
    assert log.min_offset == 90
    assert log.offset_at(0, upper=False) == 90
    assert log.offset_at(1095, upper=False) == 95
    assert log.store_time(95) == 1095
    log.close()


def test_b8_a_log_that_is_made_again_serves_nothing_old_and_takes_low_offsets(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 50, 5, roll_every=10)
    log.delete()
    log = open_log(tmp_path / "q")
    append(log, ("k1", "new"))
    assert survivors(log) == [(0, "k1", "new")]
    log.close()


def test_b9_a_position_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 100, 10, roll_every=20)
    log.close()
    path = tmp_path / "q" / MANIFEST_NAME
    claimed = msgspec.structs.replace(manifest(tmp_path / "q"), clean_until=10_000)
    path.write_bytes(encode_checked(claimed))
    log = open_log(tmp_path / "q")
    log.compact(force=True)
    assert len(survivors(log)) == 10
    log.close()


def test_b12_more_than_two_gibibytes_of_offsets_and_many_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q")
    for i in range(25):
        log.append(records_of([((i << 31) + 5, f"k{i % 2}", str(i))], stored=0))
        log.roll()
    log.compact(force=True)
    assert [one[2] for one in survivors(log)] == ["23", "24"]
    assert log.next_offset == (24 << 31) + 6
    log.close()


def test_a_compaction_runs_beside_gaps_keyless_records_and_large_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path / "q", settings(file_size=10_000))
    large = "x" * (ENTRY_BYTES + 12_345)
    rows: list[Record] = [
        (3, "a", "1"),
        (9, None, "kept"),
        (10, "a", large),
        (500, None, None),
        (501, "b", large),
        (502, "a", "2"),
        (700, "b", "3"),
    ]
    log.append(records_of(rows))
    log.roll()
    log.compact(force=True)
    assert survivors(log) == [
        (9, None, "kept"),
        (500, None, None),
        (502, "a", "2"),
        (700, "b", "3"),
    ]
    assert log.statistics().keyless == 2
    log.close()


@pytest.mark.parametrize("digest", ["blake2b", "md5"])
def test_behaviour_12_a_chosen_md5_collision_loses_nothing_by_default(
    tmp_path: Path, digest: str
) -> None:
    """Replaced: with the keyed digest both survive; with MD5 they are one key, as the seed says."""
    one = "TEXTCOLLBYfGiJUETHQ4hAcKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak"
    two = one.replace("hAc", "hEc")
    digests = {md5(key.encode(), usedforsecurity=False).hexdigest() for key in (one, two)}
    assert len(digests) == 1
    log = open_log(tmp_path / "q", settings(digest=digest))
    append(log, (one, "1"), (two, "2"), ("a", "3"))
    log.roll()
    log.compact(force=True)
    both = [(0, one, "1"), (1, two, "2"), (2, "a", "3")]
    assert survivors(log) == (both[1:] if digest == "md5" else both)
    assert manifest(tmp_path / "q").digest == digest
    log.close()


@pytest.mark.parametrize("change", ["secret", "digest"])
def test_another_secret_or_digest_makes_the_sidecars_again(tmp_path: Path, change: str) -> None:
    log = open_log(tmp_path / "q")
    fill(log, 50, 5, roll_every=10)
    append(log, ("k0", "active"))
    log.close()
    if change == "secret":
        log = open_log(tmp_path / "q", secret=b"another")
    else:
        log = open_log(tmp_path / "q", settings(digest="md5"))
    log.roll()
    log.compact(force=True)
    assert [one[0] for one in survivors(log)] == [46, 47, 48, 49, 50]
    log.close()


class TestTombstones:
    RETAINED = settings(tombstone_retention=timedelta(milliseconds=100))

    def log(self, folder: Path, clock: TestClock) -> QueueLog:
        log = open_log(folder, self.RETAINED, clock=clock)
        append(log, ("a", "1"), ("b", "1"), ("a", None))
        log.roll()
        return log

    def test_a_delete_stays_for_its_retention_after_it_was_first_met(self, tmp_path: Path) -> None:
        clock = TestClock()
        clock.age = 1000
        log = self.log(tmp_path / "q", clock)
        log.compact(force=True)
        assert survivors(log) == [(1, "b", "1"), (2, "a", None)]
        clock.age = 1099
        assert not log.is_due()
        log.compact(force=True)
        assert (2, "a", None) in survivors(log)
        log.close()
        log = open_log(tmp_path / "q", self.RETAINED, clock=clock)
        clock.age = 1100
        assert log.is_due()
        assert log.compact().tombstones_dropped == 1
        assert survivors(log) == [(1, "b", "1")]
        log.close()

    def test_jumps_of_the_wall_clock_do_not_shorten_it(self, tmp_path: Path) -> None:
        clock = TestClock()
        log = self.log(tmp_path / "q", clock)
        log.compact(force=True)
        for jump in (-3_600_000, 10 * 365 * 86_400_000):
            clock.wall += jump
            log.compact(force=True)
            assert (2, "a", None) in survivors(log)
        log.close()

    def test_lost_times_are_taken_anew(self, tmp_path: Path) -> None:
        clock = TestClock()
        log = self.log(tmp_path / "q", clock)
        log.compact(force=True)
        log.close()
        for path in (tmp_path / "q").glob("*.index"):
            path.unlink()
        clock.age = 150
        log = open_log(tmp_path / "q", self.RETAINED, clock=clock)
        assert (2, "a", None) in survivors(log)
        assert log.is_due()
        log.compact()
        clock.age = 249
        log.compact(force=True)
        assert (2, "a", None) in survivors(log)
        clock.age = 250
        log.compact()
        assert survivors(log) == [(1, "b", "1")]
        log.close()

    def test_a_file_that_loses_nothing_is_not_copied_to_note_the_time(self, tmp_path: Path) -> None:
        clock = TestClock()
        log = open_log(tmp_path / "q", self.RETAINED, clock=clock)
        append(log, ("b", "1"), ("a", None))
        log.roll()
        [data] = (tmp_path / "q").glob("*.data")
        log.compact(force=True)
        assert list((tmp_path / "q").glob("*.data")) == [data]
        clock.age = 100
        log.compact()
        assert survivors(log) == [(0, "b", "1")]
        log.close()

    def test_a_round_that_does_not_cover_a_delete_leaves_it(self, tmp_path: Path) -> None:
        """Or the value before it, which that round leaves too, would come back."""
        log = open_log(tmp_path / "q", IMMEDIATE)
        append(log, ("a", "1"), ("b", "1"), ("b", None), ("c", None))
        log.roll()
        log.compact(force=True, map_capacity=1, max_rounds=1)
        assert survivors(log) == [(0, "a", "1"), (1, "b", "1"), (2, "b", None), (3, "c", None)]
        log.compact(force=True, map_capacity=1, max_rounds=1)
        assert survivors(log) == [(0, "a", "1"), (3, "c", None)]
        log.compact(force=True, map_capacity=1)
        assert survivors(log) == [(0, "a", "1")]
        log.close()

    def test_a_value_after_the_delete_supersedes_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q", IMMEDIATE)
        append(log, ("a", "1"), ("a", None), ("a", "2"))
        log.roll()
        append(log, ("b", "1"), ("b", None))
        log.compact(force=True)
        log.roll()
        log.compact(force=True, map_capacity=1)
        assert survivors(log) == [(2, "a", "2")]
        log.close()


class TestWhenAndHowMuch:
    def test_the_dirty_ratio_decides(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q", settings(dirty_ratio=0.5))
        fill(log, 100, 100)
        log.roll()
        assert log.is_due()
        log.compact()
        dirt = log.dirt()
        assert (dirt.dirty_bytes, dirt.oldest_dirty) == (0, None)
        fill(log, 60, 100)
        log.roll()
        assert 0.3 < log.dirt().ratio < 0.5
        assert log.dirt().oldest_dirty == 1100
        assert not log.is_due()
        assert log.compact() == CompactionReport.nothing()
        fill(log, 60, 100)
        log.roll()
        assert log.is_due()
        log.close()

    def test_max_lag_makes_a_queue_due_and_min_lag_protects_the_young(self, tmp_path: Path) -> None:
        clock = TestClock()
        config = settings(
            dirty_ratio=1, max_lag=timedelta(milliseconds=500), min_lag=timedelta(milliseconds=50)
        )
        log = open_log(tmp_path / "q", config, clock=clock)
        append(log, ("a", "1"), ("a", "2"), stored=clock.wall)
        log.roll()
        clock.wall += 40
        log.compact()
        assert len(survivors(log)) == 2
        clock.wall += 40
        assert log.is_due()
        log.compact()
        append(log, ("b", "1"), ("b", "2"), stored=clock.wall)
        log.roll()
        clock.wall += 400
        assert not log.is_due()
        clock.wall += 200
        assert log.is_due()
        log.compact()
        assert [one[0] for one in survivors(log)] == [1, 3]
        log.close()

    def test_write_amplification_is_near_one_over_the_ratio(self, tmp_path: Path) -> None:
        """RocketMQ rewrites everything for every closed file: here that would be 40 times."""
        log = open_log(tmp_path / "q", settings(file_size=20_000, dirty_ratio=0.5))
        appended = written = 0
        for _ in range(80):
            before = log.statistics().bytes
            base = log.next_offset
            log.append(records_of([(i, f"k{i}", "x" * 100) for i in range(base, base + 100)]))
            log.roll()
            appended += log.statistics().bytes - before
            written += log.compact().bytes_written
        # All keys differ, so nothing may be dropped: only small files are put together.
        assert written <= 2 * appended
        log.close()

    def test_files_that_lose_nothing_are_listed_again(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q", settings(file_size=4000))
        fill(log, 30, 30, width=100)
        log.roll()
        names = [meta.name for meta in manifest(tmp_path / "q").files]
        assert len(names) > 1
        append(log, ("k29", "new"))
        log.roll()
        log.compact(force=True)
        kept = [meta.name for meta in manifest(tmp_path / "q").files]
        assert kept[: len(names) - 1] == names[:-1]
        log.close()

    def test_small_outputs_are_put_together_up_to_the_file_size(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q", settings(file_size=5000))
        for i in range(100):
            append(log, (f"k{i}", "v"))
            log.roll()
        log.compact(force=True)
        stats = log.statistics()
        assert stats.files < 8
        assert all(path.stat().st_size <= 5500 for path in (tmp_path / "q").glob("*.data"))
        assert len(survivors(log)) == 100
        log.close()

    def test_below_leaves_later_files_alone(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q")
        fill(log, 30, 2, roll_every=10)
        log.compact(force=True, below=20)
        assert [one[0] for one in survivors(log)] == [18, 19, *range(20, 30)]
        log.close()

    def test_the_pace_is_kept(self) -> None:
        slept: list[float] = []
        pace = RateLimit(1000, slept.append)
        pace(500)
        pace(1500)
        assert 0.4 < slept[0] <= 0.5
        assert 1.9 < slept[1] <= 2.0

    def test_a_throttle_sees_every_byte_that_is_read_and_written(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q", settings(bytes_per_second=1))
        fill(log, 100, 10)
        log.roll()
        seen: list[int] = []
        report = log.compact(force=True, throttle=seen.append)
        assert sum(seen) > report.bytes_in
        log.close()


class TestDamage:
    def flip(self, path: Path, at: int) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    def test_b10_damage_of_any_byte_stops_the_compaction_and_names_the_place(
        self, tmp_path: Path
    ) -> None:
        log = open_log(tmp_path / "q")
        for i in range(4):
            append(log, ("a" * 10, f"old{i}"), ("b", "x"))
        log.roll()
        log.close()
        [data] = (tmp_path / "q").glob("*.data")
        good = data.read_bytes()
        for at in range(0, len(good), 7):
            self.flip(data, at)
            log = open_log(tmp_path / "q")
            entry = at // (len(good) // 4) * (len(good) // 4)
            with pytest.raises(CorruptLogError, match=f"{data.name}: the entry at byte {entry} "):
                log.compact(force=True)
            # The old view stays, and what is not damaged is served.
            assert files(tmp_path / "q") >= {data.name, MANIFEST_NAME}
            assert len(list((tmp_path / "q").glob("*.data"))) == 1
            intact = [2 * i for i in range(4) if i * (len(good) // 4) != entry]
            for offset in intact:
                assert decode(log.read(offset, 1, 1).slices)[0][0] == offset
            with pytest.raises(CorruptLogError, match=f"{data.name}: the entry at byte"):
                log.read(2 * (entry // (len(good) // 4)), 1, 1)
            [damage] = log.verify()
            assert (damage.path, damage.offset) == (data, entry)
            log.close()
            data.write_bytes(good)
        log = open_log(tmp_path / "q")
        log.compact(force=True)
        assert [one[0] for one in survivors(log)] == [6, 7]
        log.close()

    def test_a_read_that_meets_damage_gives_what_lies_in_front_of_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q")
        for i in range(3):
            append(log, (f"k{i}", "v"))
        log.roll()
        log.close()
        [data] = (tmp_path / "q").glob("*.data")
        self.flip(data, data.stat().st_size // 2)
        log = open_log(tmp_path / "q")
        read = log.read(0, 10, 1 << 20)
        assert (read.count, read.next_offset) == (1, 1)
        with pytest.raises(CorruptLogError):
            log.read(1, 10, 1 << 20)
        assert decode(log.read(2, 10, 1 << 20).slices)[0][0] == 2
        log.close()

    @pytest.mark.parametrize("suffix", ["index", "keys"])
    @pytest.mark.parametrize("how", ["missing", "empty", "short", "flipped", "another"])
    def test_derived_files_are_made_again(self, tmp_path: Path, suffix: str, how: str) -> None:
        log = open_log(tmp_path / "q")
        fill(log, 40, 10, roll_every=20)
        fill(log, 10, 10)
        log.close()
        paths = sorted((tmp_path / "q").glob(f"*.{suffix}"))
        assert len(paths) == 3
        other = paths[1].read_bytes()
        for path in paths:
            content = path.read_bytes()
            if how == "missing":
                path.unlink()
            elif how == "flipped":
                self.flip(path, len(content) // 2)
            else:
                path.write_bytes({"empty": b"", "short": content[:-3], "another": other}[how])
        log = open_log(tmp_path / "q")
        assert len(survivors(log)) == 50
        log.compact(force=True)
        assert [one[0] for one in survivors(log)] == list(range(30, 50))
        log.close()
        log = open_log(tmp_path / "q")
        assert [one[0] for one in survivors(log)] == list(range(30, 50))
        assert log.verify() == []
        log.close()

    def test_a_data_file_that_is_missing_or_short_is_damage_not_a_gap(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "q")
        fill(log, 40, 30, roll_every=20)
        log.close()
        first, second = sorted((tmp_path / "q").glob("*.data"))
        first.unlink()
        os.truncate(second, second.stat().st_size - 1)
        log = open_log(tmp_path / "q")
        for offset, path in [(0, first), (39, second)]:
            with pytest.raises(CorruptLogError, match=path.name):
                log.read(offset, 1, 1)
        with pytest.raises(StoreError, match=first.name):
            log.compact(force=True)
        assert {damage.path for damage in log.verify()} == {first, second}
        log.close()


def test_records_with_hosts_of_both_families_survive(tmp_path: Path) -> None:
    """Records with IPv6 hosts are longer: sizes, keys and store times come out right."""
    host = ("::1", 80)
    assert len(pack_host(host)) == 20
    log = open_log(tmp_path / "q")
    properties = b"KEYS\x01k\x02"
    made = join_records(
        [
            encode_record("t", b"v6", properties, RecordFields(born_host=host)),
            encode_record("t", b"v4", properties),
            encode_record("t", b"v6 again", properties, RecordFields(born_host=host)),
        ]
    )
    stamp_records(made, 0, 0, 77, ("127.0.0.1", 1))
    log.append(made)
    log.roll()
    log.compact(force=True)
    assert survivors(log) == [(2, "k", "v6 again")]
    assert log.store_time(2) == 77
    assert manifest(tmp_path / "q").files[0].newest == 77
    log.close()
