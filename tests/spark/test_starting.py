"""Starts and stops of a job that meet in two threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import StreamBuilder, serdes
from headrace.spark import StreamJob

PATIENCE = 30.0


class SlowJob(StreamJob):
    """Takes its time to open, as while it waits for brokers, and notes what happens to it."""

    def __init__(self) -> None:
        builder = StreamBuilder("slow")
        builder.source("lines", serdes.string).sink("copies", serdes.string)
        super().__init__(builder.build())
        self.opening, self.go_on, self.gave_up = (threading.Event() for _ in range(3))
        self.notes: list[str] = []
        transactions = SimpleNamespace(give_up=self.gave_up.set)
        self._prepared: Any = SimpleNamespace(connection=SimpleNamespace(transactions=transactions))

    def _begin(self) -> Any:
        self.opening.set()
        assert self.go_on.wait(PATIENCE)
        self.notes.append("opened")
        self._opened.callback(self.notes.append, "closed")
        self._driver: Any = SimpleNamespace(stop=lambda: self.notes.append("stopped"))
        return SimpleNamespace(supervise=lambda: None, fail=self.notes.append)


@contextmanager
def thread(work: Any) -> Iterator[threading.Thread]:
    one = threading.Thread(target=work)
    one.start()
    try:
        yield one
    finally:
        one.join(PATIENCE)
        assert not one.is_alive()


@pytest.mark.timeout(120)
def test_stop_that_meets_a_start_closes_what_the_start_has_opened() -> None:
    job = SlowJob()
    with thread(job.start):
        assert job.opening.wait(PATIENCE)
        with thread(job.stop):
            assert job.gave_up.wait(PATIENCE)
            assert job.notes == []
            job.go_on.set()
    assert job.notes == ["opened", "stopped", "closed"]
