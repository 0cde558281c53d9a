"""Settings of compaction, and the clock by which deletes are kept."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SettingsError
from headrace.store import FileOps
from headrace.store.compaction import CompactionSettings, StoreClock, compactor


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("file_size", 0),
        ("map_bytes", 0),
        ("threads", 0),
        ("bytes_per_second", 0),
        ("dirty_ratio", 1.1),
        ("dirty_ratio", -0.1),
        ("tombstone_retention", timedelta(-1)),
        ("min_lag", timedelta(-1)),
        ("max_lag", timedelta(-1)),
        ("digest", "sha1"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name} is"):
        CompactionSettings(**{name: value})


def test_the_age_goes_on_with_real_time_and_never_back() -> None:
    aged = StoreClock(elapsed=5000)
    first = aged.elapsed()
    assert 5000 <= first < 60_000
    assert aged.elapsed() >= first
    assert abs(aged.now() - time.time() * 1000) < 60_000


def test_the_age_is_kept_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "CLOCK"
    StoreClock(elapsed=7_000).save(path, FileOps())
    assert 7_000 <= StoreClock.open(path).elapsed() < 60_000


def test_t15_what_passed_before_a_reboot_is_not_known_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "CLOCK"
    monkeypatch.setattr(compactor, "_since_boot", lambda: 900_000)
    StoreClock(elapsed=7_000).save(path, FileOps())
    monkeypatch.setattr(compactor, "_since_boot", lambda: 1_000_000)
    assert StoreClock.open(path).elapsed() == 107_000
    monkeypatch.setattr(compactor, "_boot", lambda: b"x" * 36)
    assert StoreClock.open(path).elapsed() == 7_000
    monkeypatch.setattr(compactor, "_since_boot", lambda: 10)
    assert StoreClock.open(path).elapsed() == 7_000


@pytest.mark.parametrize("how", ["missing", "short", "flipped"])
def test_a_lost_age_begins_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "CLOCK"
    StoreClock(elapsed=3_600_000_000).save(path, FileOps())
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content if how == "flipped" else content[:20])
    assert StoreClock.open(path).elapsed() < 60_000
