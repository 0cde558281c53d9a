from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from headrace.cli.progress import line_of, shown


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


def test_state_is_one_line() -> None:
    assert line_of(Progress()) == (
        "epoch 2 · batch 17 · 1,204,000 in · 88,123 out · 412,346 records/s · lag 5"
    )


def test_unknown_lag_is_called_so() -> None:
    assert line_of(Progress(lag=None)).endswith("lag unknown")


def test_restore_is_shown_while_it_runs() -> None:
    progress = Progress(restored=1_200, to_restore=50_000)
    assert line_of(progress) == "restoring state · 1,200 of 50,000 messages"


def test_nothing_is_left_running_when_the_job_fails() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="stopped"), shown(Progress, "word-count"):
        raise ValueError("stopped")
    assert threading.active_count() == before
