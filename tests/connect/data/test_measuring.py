"""What tasks have moved, and when it is told."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.connect.channel import EngineMessage, QueryEvent, TaskCopy
from headrace.connect.data.jobs import Measuring
from headrace.connect.worker import Figures, Moved
from headrace.errors import JobFailedError

UNIT = TaskCopy("orders", 0, 4)


@dataclass
class _Job:
    batch: int = 0
    lag: int = 0
    away: bool = False
    looks: int = 0

    def figures(self) -> Figures:
        self.looks += 1
        if self.away:
            raise JobFailedError("its broker is away")
        return Figures(records=10 * self.batch, commits=self.batch, lag=self.lag)


def _measuring(job: _Job) -> tuple[Measuring, list[EngineMessage], dict[TaskCopy, _Job]]:
    told: list[EngineMessage] = []
    jobs = {UNIT: job}
    return Measuring(lambda: jobs, told.append), told, jobs


def test_a_commit_is_told_at_the_next_look_and_only_once() -> None:
    job = _Job()
    measuring, told, _ = _measuring(job)
    measuring.look(0.0)
    job.batch = 1
    measuring.look(1.0)
    measuring.look(2.0)
    assert told == [
        QueryEvent(UNIT, Moved(Figures(lag=0))),
        QueryEvent(UNIT, Moved(Figures(records=10, commits=1, lag=0))),
    ]
    assert job.looks == 2


def test_a_lag_that_grows_without_a_commit_is_told_now_and_then() -> None:
    job = _Job(batch=1)
    measuring, told, _ = _measuring(job)
    measuring.look(100.0)
    job.lag = 7
    measuring.look(101.0)
    assert len(told) == 1
    measuring.look(105.0)
    assert told[1:] == [QueryEvent(UNIT, Moved(Figures(records=10, commits=1, lag=7)))]
    measuring.look(110.0)
    assert len(told) == 2


def test_a_job_whose_broker_is_away_is_told_of_when_it_is_back() -> None:
    job = _Job(away=True)
    measuring, told, _ = _measuring(job)
    measuring.look(0.0)
    job.away, job.batch = False, 1
    measuring.look(1.0)
    assert told == [QueryEvent(UNIT, Moved(Figures(records=10, commits=1, lag=0)))]


def test_of_a_job_that_is_gone_nothing_is_kept() -> None:
    measuring, told, jobs = _measuring(_Job())
    measuring.look(0.0)
    job = jobs.pop(UNIT)
    measuring.look(1.0)
    jobs[UNIT] = job
    measuring.look(2.0)
    assert len(told) == 2
