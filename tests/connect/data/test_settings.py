"""Where the engine runs, and how it reaches its cluster."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.connect.data.positions import EngineSettings
from headrace.errors import SettingsError
from headrace.settings import JobSettings


def settings(master: str = "local[2,4]", **jobs: object) -> EngineSettings:
    return EngineSettings(
        namesrv="127.0.0.1:9876",
        folder=Path("engine"),
        master=master,
        jobs=JobSettings(**jobs),  # type: ignore[arg-type]
    )


def test_accounts_tls_and_time_limits_reach_the_engines_client_and_its_jobs() -> None:
    given = settings(
        access_key="connect",
        secret_key="hush",
        tls=True,
        tls_ca=Path("ca.pem"),
        retry_timeout="3 s",
        lease_expiry="30 s",
        spark_config={"spark.ui.enabled": "true"},
    )
    job, client = given.job_settings(), given.client_settings
    for one in (job, client):
        assert (one.access_key, one.secret_key, one.tls) == ("connect", "hush", True)
        assert (one.tls_ca, one.retry_timeout) == (Path("ca.pem"), timedelta(seconds=3))
    assert job.lease_expiry == timedelta(seconds=30)
    assert job.spark_config["spark.ui.enabled"] == "true"
    assert "hush" not in repr(given)


def test_what_belongs_to_pipelines_does_not_reach_tasks() -> None:
    job = settings(poison="skip", start="latest", partitions=7, guarantee="at_least_once")
    assert job.job_settings().poison == "fail"
    assert job.job_settings().partitions == 1
    assert job.job_settings().guarantee == "exactly_once"


@pytest.mark.parametrize(
    ("master", "cores", "slots"),
    [
        ("local", 1, "local[251]"),
        ("local[3]", 3, "local[253]"),
        ("local[2, 4]", 2, "local[252,4]"),
        # Its executors have their cores and no more.
        ("local-cluster[3,2,1024]", 6, "local-cluster[3,2,1024]"),
    ],
)
def test_batches_of_code_that_hangs_have_slots_of_their_own(
    master: str, cores: int, slots: str
) -> None:
    given = settings(master)
    assert given.cores == cores
    assert given.job_settings().master == slots
    assert given.job_settings().spark_config["spark.default.parallelism"] == str(cores)


def test_batches_of_columns_are_larger_where_nobody_says_how_large() -> None:
    assert settings().job_settings().max_records_per_batch == 100_000
    assert settings().job_settings(columns=True).max_records_per_batch == 500_000
    for most in (7, 1_000_000):
        job = settings(max_records_per_batch=most).job_settings(columns=True)
        assert job.max_records_per_batch == most


def test_a_star_takes_all_cores() -> None:
    assert settings("local[*]").cores == len(os.sched_getaffinity(0))
    assert settings("local[*,4]").job_settings().master.endswith(",4]")


@pytest.mark.parametrize(
    "master",
    ["spark://other:7077", "yarn", "k8s://https://cluster", "local[x]", "local[2,4", "local[0]"],
)
def test_executors_elsewhere_are_refused(master: str) -> None:
    with pytest.raises(SettingsError, match="own machine") as refused:
        settings(master)
    assert "run a worker on each machine" in str(refused.value)
