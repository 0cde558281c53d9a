"""What a topology's configuration says to its jobs, and how their numbers add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import JobSettings, JobStatistics, TransactionJob
from headrace.errors import StateError
from headrace.runtime.commit.drivers import LeaseWait
from headrace.runtime.job_plan import JobPlan
from headrace.settings import Guarantee
from headrace.spark import worker
from headrace.spark.statistics import PlanHandle, pickle_plan, total
from headrace.spark.worker import connection
from headrace.transactions import TransactionTopology, TransactionTopologyBuilder
from tests.transactions.components import Count, Words


def built(config: Mapping[str, object]) -> TransactionTopology:
    builder = TransactionTopologyBuilder("job", config)
    builder.set_spout("spout", Words())
    builder.set_bolt("count", Count()).fields_grouping("spout", "word")
    return builder.build()


@pytest.mark.parametrize(
    ("given", "setting", "guarantee"),
    [
        (None, "exactly_once", "exactly_once"),
        (None, "at_least_once", "at_least_once"),
        (True, "at_least_once", "exactly_once"),
        (False, "exactly_once", "at_least_once"),
    ],
)
def test_a_key_that_is_given_chooses_the_guarantee(
    given: bool | None, setting: Guarantee, guarantee: Guarantee
) -> None:
    """R38."""
    config = {} if given is None else {"transaction.exactly.once.mode": given}
    job = TransactionJob(built(config), JobSettings(guarantee=setting))
    assert job.settings.guarantee == guarantee


def test_a_batch_of_topics_is_as_large_as_one_of_spouts_if_that_is_given() -> None:
    settings = JobSettings(max_records_per_batch=9)
    assert TransactionJob(built({}), settings).settings.max_records_per_batch == 9
    job = TransactionJob(built({"tuple.num.per.batch": 77}), settings)
    assert job.settings.max_records_per_batch == 77


def test_time_limit_and_retries_are_those_of_the_configuration_where_it_has_them() -> None:
    settings = JobSettings(batch_timeout=timedelta(seconds=9), rollback_retries=8)
    kept = TransactionJob(built({}), settings).settings
    assert (kept.batch_timeout, kept.rollback_retries) == (timedelta(seconds=9), 8)
    config = {"transaction.batch.snapshot.timeout": 30, "poison.max.rollbacks": 2}
    changed = TransactionJob(built(config), settings).settings
    assert (changed.batch_timeout, changed.rollback_retries) == (timedelta(seconds=30), 2)


def test_a_job_that_was_not_started_has_no_state() -> None:
    with pytest.raises(StateError, match="topology 'job' has no state of 'count'"):
        TransactionJob(built({})).state("count")


def test_numbers_of_groups_add_up() -> None:
    one = JobStatistics(
        running=True,
        epoch=3,
        batch=10,
        records_in=100,
        records_out=50,
        skipped=1,
        dead_lettered=2,
        lag=7,
        batch_duration=timedelta(seconds=1),
        records_per_second=10.0,
        behind=timedelta(seconds=4),
        state_keys=5,
        state_bytes=500,
        restored=1,
        to_restore=2,
        restarts=1,
        operators={},
        batches={},
    )
    wait = LeaseWait(driver="other", since=datetime.now(UTC), until=None)
    other = replace(
        one, running=False, epoch=5, batch=1, lag=None, behind=None, failed=1, waiting=wait
    )
    both = total([one, other])
    assert both == replace(
        one,
        running=False,
        epoch=5,
        batch=11,
        records_in=200,
        records_out=100,
        skipped=2,
        dead_lettered=4,
        lag=None,
        records_per_second=20.0,
        state_keys=10,
        state_bytes=1000,
        restored=2,
        to_restore=4,
        restarts=2,
        groups=2,
        failed=1,
        waiting=wait,
    )
    assert total([one]) == one


def test_groups_take_turns_in_a_worker_and_a_new_start_takes_the_place_of_the_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_MOST_CONNECTIONS", 8)

    def handle(name: str, **settings: Any) -> PlanHandle:
        builder = TransactionTopologyBuilder(name)
        builder.set_spout("spout", Words())
        builder.set_bolt("count", Count()).fields_grouping("spout", "word")
        (group,) = builder.build().groups
        plan = JobPlan(group, JobSettings(**settings), "127.0.0.1:1", embedded=True, stores=None)
        return pickle_plan(plan)

    one, two = handle("one"), handle("two")
    first, second = connection(one), connection(two)
    assert second is not first
    assert connection(one) is first
    again = connection(handle("one", partitions=3))
    assert again is not first
    assert connection(one) not in (first, again)
    for number in range(10):
        connection(handle(f"other-{number}"))
    assert len(worker._connections) == 8
    assert connection(two) is not second
