"""The long run: processes die and stand still at random, three checkers look; see `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.harness import seeded
from tests.faults.proof_job import proof_job
from tests.faults.strikes import ON_A_CLUSTER, PATIENCE_SECONDS, STRIKES, Strike

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("MINUTES", "10"))
#: A master, three workers and their executors, all of them processes of this machine.
_CLUSTER = {"--master": "local-cluster[3,1,1024]"}
_SPARK = {
    "HEADRACE_SPARK_CONFIG": "spark.executor.memory=512m,spark.executor.heartbeatInterval=1s,"
    f"spark.network.timeout={PATIENCE_SECONDS}s,spark.task.maxFailures=4"
}


@pytest.mark.parametrize(
    ("options", "spark", "strikes"),
    [
        pytest.param({}, {}, STRIKES, id="local"),
        pytest.param(_CLUSTER, _SPARK, ON_A_CLUSTER, id="cluster"),
    ],
)
def test_whatever_dies_or_stands_still_every_result_is_there_once(
    tmp_path: Path,
    options: Mapping[str, str],
    spark: Mapping[str, str],
    strikes: Mapping[str, Strike],
) -> None:
    chance = seeded()
    begin = time.monotonic()
    with proof_job(tmp_path, options, spark) as scene:
        scene.begin()
        while time.monotonic() < begin + 60 * MINUTES:
            kind = chance.choice(sorted(strikes))
            scene.strike(kind, strikes[kind], chance)
        survived = scene.finish()
        survived.seconds = time.monotonic() - begin
    print(survived, flush=True)
    assert survived.strikes
