from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from headrace.cli import progress, progress as progress_module
from headrace.cli.progress import ending_of, line_of, shown
from headrace.runtime.commit.drivers import LeaseWait


@dataclass
class Progress:
    epoch: int = 2
    batch: int = 17
    records_in: int = 1_204_000
    records_out: int = 88_123
    lag: int | None = 5
    records_per_second: float = 412_345.6
    restored: int = 0
    to_restore: int = 0
    groups: int = 1
    failed: int = 0
    waiting: LeaseWait | None = None


def test_state_is_one_line() -> None:
    assert line_of(Progress()) == (
        "epoch 2 · batch 17 · 1,204,000 in · 88,123 out · 412,346 records/s · lag 5"
    )


def test_unknown_lag_is_called_so() -> None:
    assert line_of(Progress(lag=None)).endswith("lag unknown")


def test_groups_are_one_line() -> None:
    begin = "2 groups · 17 batches · 1,204,000 in · 88,123 out · "
    assert line_of(Progress(groups=2)).startswith(begin)
    failed = "3 groups (1 failed) · 17 batches · "
    assert line_of(Progress(groups=3, failed=1)).startswith(failed)


def test_job_that_was_stopped_says_how_far_it_is() -> None:
    on = "; the next start goes on from there."
    assert ending_of(Progress()) == f"Stopped after batch 17{on}"
    assert ending_of(Progress(groups=2, batch=1034)) == f"Stopped after 1,034 batches{on}"
    assert ending_of(Progress(epoch=0, batch=0)) == "Stopped before it began."


SINCE = datetime(2026, 11, 21, 16, 19, 31).astimezone()
DRIVER = "laptop:4711@5f1c/4026531836/88/1a2b"


def test_wait_for_a_driver_that_runs_says_whose_end_it_waits_for() -> None:
    wait = LeaseWait(driver=DRIVER, since=SINCE, until=None)
    assert line_of(Progress(waiting=wait)) == (
        "laptop:4711 runs this job, or has its lease · waiting for its end since 16:19:31"
    )


def test_wait_for_a_driver_that_may_live_says_until_when() -> None:
    wait = LeaseWait(driver="", since=SINCE, until=SINCE + timedelta(seconds=60))
    assert line_of(Progress(waiting=wait)) == (
        "waiting until another driver has surely stopped · since 16:19:31 · until 16:20:31"
    )


class Told:
    """Samples of a job, one after the other; then the last for ever."""

    def __init__(self, samples: list[tuple[int, int]]) -> None:
        self._samples = samples
        self.over = threading.Event()

    def __call__(self) -> Progress:
        if not self._samples:
            self.over.set()
            return Progress()
        restored, to_restore = self._samples.pop(0)
        return Progress(restored=restored, to_restore=to_restore)


def told_of(
    samples: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, *, patience: float
) -> Told:
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    for interval in ("_PLAIN_INTERVAL", "_LIVE_INTERVAL"):
        monkeypatch.setattr(progress_module, interval, 0.01)
    monkeypatch.setattr(progress_module, "_PLAIN_LOOKS", 1)
    told = Told(samples)
    with shown(told, "word-count"):
        assert told.over.wait(10)
    return told


SAMPLES = [(0, 400), (100, 400), (50, 200), (199, 200), (0, 0)]


def test_long_restore_is_told_in_lines_and_never_goes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told_of(list(SAMPLES), monkeypatch, patience=-1.0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "restor" in line]
    assert lines[:4] == [
        "word-count · restoring state · 0% · 0 of 400 messages",
        "word-count · restoring state · 25% · 100 of 400 messages",
        "word-count · restoring state · 62% · 250 of 400 messages",
        "word-count · restoring state · 100% · 399 of 400 messages",
    ]
    assert lines[4].startswith("word-count · restored state · 400 messages in ")


def test_short_restore_is_not_worth_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told_of(list(SAMPLES), monkeypatch, patience=60.0)
    told = capsys.readouterr().err
    assert "restor" not in told
    assert "lag 5" in told


def test_long_restore_is_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "150")
    told_of(list(SAMPLES), monkeypatch, patience=-1.0)
    told = capsys.readouterr().err
    assert "restoring state" in told
    assert "━" in told
    assert "restored state" in told


def test_nothing_is_left_running_when_the_job_fails() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="stopped"), shown(Progress, "word-count"):
        raise ValueError("stopped")
    assert threading.active_count() == before
