"""What a worker keeps between the batches of many jobs."""

from __future__ import annotations

import gc

import pytest
from pyspark import TaskContext

from headrace import StreamBuilder, serdes
from headrace.runtime.job_plan import JobPlan
from headrace.settings import JobSettings
from headrace.spark import worker
from headrace.spark.statistics import PlanHandle, pickle_plan
from headrace.spark.worker import connection


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_connections", {})
    monkeypatch.setattr(worker, "_clients", {})


def handle(job: str, namesrv: str = "127.0.0.1:1", **settings: str) -> PlanHandle:
    builder = StreamBuilder(job)
    builder.source("in", serdes.string).sink("out", serdes.string)
    given = JobSettings(namesrv=namesrv, **settings)  # type: ignore[arg-type]
    return pickle_plan(JobPlan(builder.build(), given, namesrv, embedded=True))


def test_a_hundred_jobs_in_turn_keep_their_connections_and_share_the_sockets() -> None:
    handles = [handle(f"job-{number}") for number in range(100)]
    first = [connection(one) for one in handles]
    assert [connection(one) for one in handles] == first
    assert len({one.plan.job for one in first}) == 100
    assert len({id(one.client) for one in first}) == 1


def test_jobs_of_other_clusters_and_accounts_have_clients_of_their_own() -> None:
    handles = [
        handle("a"),
        handle("b", "127.0.0.1:2"),
        handle("c", access_key="ann", secret_key="s3cret"),
    ]
    assert len({id(connection(one).client) for one in handles}) == 3


def test_the_oldest_connection_goes_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_MOST_CONNECTIONS", 2)
    handles = [handle(f"job-{number}") for number in range(3)]
    first, second, _ = (connection(one) for one in handles)
    assert connection(handles[1]) is second
    assert connection(handles[0]) is not first


def test_a_job_with_another_plan_replaces_what_was_kept_of_it() -> None:
    before = connection(handle("job"))
    after = connection(handle("job", "127.0.0.1:2"))
    assert list(worker._connections.values()) == [after]
    assert before is not after


def test_garbage_is_collected_late_in_tasks_and_as_ever_in_who_plans_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, seen = gc.get_threshold(), []
    monkeypatch.setattr(gc, "set_threshold", lambda *given: seen.append(given))
    connection(handle("planned"))
    assert seen == []
    monkeypatch.setattr(TaskContext, "get", object)
    connection(handle("run"))
    assert [first for first, *_ in seen] == [500_000]
    assert gc.get_threshold() == before
