"""The long run: processes die and stand still at random, three checkers look; see `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import get_args

import pytest

from tests.faults.broker import running_broker
from tests.faults.harness import Brokers, seeded
from tests.faults.proof_fronts import Front
from tests.faults.proof_job import proof_job
from tests.faults.rocket_brokers import LEASE_SECONDS, running_rocket_brokers
from tests.faults.strikes import (
    ON_A_CLUSTER,
    ON_ROCKETMQ,
    PATIENCE_SECONDS,
    STRIKES,
    Strike,
    rounds,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("MINUTES", "10"))
#: A master, three workers and their executors, all of them processes of this machine.
_CLUSTER = {"--master": "local-cluster[3,1,1024]"}
_SPARK = {
    "HEADRACE_SPARK_CONFIG": "spark.executor.memory=512m,spark.executor.heartbeatInterval=1s,"
    f"spark.network.timeout={PATIENCE_SECONDS}s,spark.network.timeoutInterval=1s,"
    # Without these, a busy machine has that long to start.
    "spark.rpc.askTimeout=120s,spark.rpc.lookupTimeout=120s,spark.task.maxFailures=4"
}


@pytest.mark.parametrize("front", get_args(Front))
@pytest.mark.parametrize(
    ("brokers", "options", "spark", "strikes"),
    [
        pytest.param(running_broker, {}, {}, STRIKES, id="local"),
        pytest.param(running_broker, _CLUSTER, _SPARK, ON_A_CLUSTER, id="cluster"),
        pytest.param(
            running_rocket_brokers,
            {"--lease-expiry": f"{LEASE_SECONDS} s"},
            {},
            ON_ROCKETMQ,
            id="rocketmq",
            marks=pytest.mark.rocketmq,
        ),
    ],
)
def test_whatever_dies_or_stands_still_every_result_is_there_once(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    front: Front,
    brokers: Callable[[Path], AbstractContextManager[Brokers]],
    options: Mapping[str, str],
    spark: Mapping[str, str],
    strikes: Mapping[str, Strike],
) -> None:
    chance = seeded(request.node.nodeid)
    begin = time.monotonic()
    with proof_job(tmp_path, brokers(tmp_path / "broker"), options, spark, front=front) as scene:
        scene.begin()
        for kind in rounds(strikes, chance):
            if time.monotonic() > begin + 60 * MINUTES:
                break
            scene.strike(kind, strikes[kind], chance)
        survived = scene.finish()
        survived.seconds = time.monotonic() - begin
    print(survived, flush=True)
    assert survived.strikes
