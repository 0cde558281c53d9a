"""What a start and a batch read of the commit topic does not grow with what the job has done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.handlers import pull
from headrace.runtime.commit.journal.topic import CommitTopic
from tests.faults.broker import make_lines
from tests.faults.journal_scene import Scene
from tests.faults.local_driver import LocalDriver
from tests.faults.word_pipeline import pipeline

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.store import ReadResult

#: A job that is new, and one that was started again and again and committed often.
FEW, MANY = 3, 20
#: Most records that a step reads on RocketMQ: the newest few, and some to delete.
HANDFUL = 16


@dataclass
class Reads:
    """Reads of commit topics that a broker has answered."""

    requests: int = 0
    records: int = 0
    bytes: int = 0


@dataclass
class Cost:
    """What the parts of a job have read, one after the other."""

    start: Reads = field(default_factory=Reads)
    plan: Reads = field(default_factory=Reads)
    tasks: Reads = field(default_factory=Reads)
    commit: Reads = field(default_factory=Reads)


class Meter:
    """Counts what a broker in this process reads of commit topics."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reads = Reads()
        read = pull._read

        def counted(core: Core, asked: pull._Pull) -> ReadResult:
            found = read(core, asked)
            if asked.topic.endswith("-commitTopic"):
                self.reads.requests += 1
                self.reads.records += found.count
                self.reads.bytes += sum(map(len, found.slices))
            return found

        patch.setattr(pull, "_read", counted)

    @contextmanager
    def into(self, reads: Reads) -> Iterator[None]:
        """Count what is read meanwhile."""
        self.reads = reads
        yield
        self.reads = Reads()


def cost_after(epochs: int, folder: Path, meter: Meter, *, journal: bool) -> Cost:
    """Start a job so many times, with a batch each, and give what one more start costs."""
    cost = Cost()
    settings = BrokerSettings(flush="async")
    with EmbeddedBroker(folder / "broker", settings=settings) as broker:
        scene = Scene(broker.address, folder)
        job = pipeline(scene.mark)

        def batch(driver: LocalDriver) -> None:
            with meter.into(cost.plan):
                planned = driver.plan()
            with meter.into(cost.tasks):
                end = driver.process(planned)
            with meter.into(cost.commit):
                driver.commit(end)

        with LocalDriver(broker.address, scene.folder, job=job, journal=journal) as driver:
            scene.send(make_lines(20))
            driver.catch_up()
            for _ in range(epochs):
                driver.roll_back()
        scene.send(make_lines(20))
        cost = Cost()
        with meter.into(cost.start):
            last = LocalDriver(broker.address, scene.folder, job=job, journal=journal)
        with last:
            assert last.epoch > epochs
            batch(last)
        scene.close()
    return cost


@pytest.mark.parametrize("journal", [False, True], ids=["embedded", "rocketmq"])
def test_a_start_and_a_batch_read_the_same_of_a_short_and_of_a_long_commit_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, journal: bool
) -> None:
    meter = Meter(monkeypatch)
    few, many = (
        cost_after(count, tmp_path / str(count), meter, journal=journal) for count in (FEW, MANY)
    )
    assert few.tasks == many.tasks == Reads(), "tasks read no commit topic"
    if not journal:
        assert few.start == many.start == few.plan == many.plan == few.commit == Reads()
        return
    for step in ("start", "plan", "commit"):
        short, long = getattr(few, step), getattr(many, step)
        assert 0 < long.records <= HANDFUL, step
        assert long.requests <= short.requests, step
        assert long.bytes < short.bytes * 1.2, step


def test_a_reader_that_begins_at_the_first_record_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(monkeypatch)
    monkeypatch.setattr(
        CommitTopic,
        "_unread",
        lambda self, queue, first, end: (list(self._messages(queue, first, end)), -1),
    )
    cost = cost_after(MANY, tmp_path, meter, journal=True)
    assert cost.start.records > MANY
    assert cost.plan.records > MANY
