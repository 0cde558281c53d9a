"""A worker that is cut off, by the times that all have who set none: others go on in a minute."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client
from tests.clusters import Cluster
from tests.connect.chaos.marked import read_marks
from tests.connect.chaos.rows import Rows
from tests.connect.chaos.test_chaos import copies_that_overlap
from tests.connect.chaos.workers import Worker, Workers, running_workers, until
from tests.connect.servers.postgres import PostgresServer
from tests.faults.harness import at_most
from tests.transactions.cases.proxy import running_proxy

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: From the cut to the first row that a new owner has moved, s; and what tasks may need to start
#: where Sparks share two cores with other tests.
MOST, START = 60.0, 25.0
#: Other times than those that nobody sets, to compare with.
TIMES = (
    tuple(os.environ.get("CONNECT_TIMES", "").split("|")) if "CONNECT_TIMES" in os.environ else ()
)


def owners(workers: Workers, rows: Rows) -> dict[tuple[str, int], str]:
    """Which worker runs which task, of those that run."""
    found = {}
    for name in (*(f"from-{topic}" for topic in rows.topics), "to-postgres"):
        told: Any = workers.get(f"/connectors/{name}/status") or {"tasks": []}
        for task in told["tasks"]:
            if task["state"] == "RUNNING":
                found[name, task["id"]] = task["worker_id"]
    return found


def are_shared(places: dict[tuple[str, int], str], among: int) -> bool:
    return len(places) == 6 and len(set(places.values())) == among


def starts_of(marks: Path) -> Counter[tuple[str, int]]:
    return Counter((one.connector, one.task) for one in read_marks(marks) if one.what == "start")


@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.budget(300)
@pytest.mark.timeout(900)
def test_what_a_worker_ran_that_is_cut_off_runs_elsewhere_within_a_minute(
    cluster: Cluster, postgres: PostgresServer, tmp_path: Path
) -> None:
    with Client(cluster.namesrv) as client:
        (broker,) = client.brokers().values()
    marks = tmp_path / "marks"
    with (
        postgres.database() as dsn,
        running_proxy(cluster.namesrv, broker if broker != cluster.namesrv else "") as proxy,
        # All go one way, as they would on machines: tasks on RocketMQ know brokers by their addresses.
        running_workers(proxy.entrance, tmp_path, TIMES) as workers,
    ):
        cut, others = workers.all[0], workers.all[1:]
        rows = Rows(
            workers, dsn, marks, [f"cut-{cluster.kind}-{os.getpid()}-{one}" for one in "ab"]
        )
        rows.begin(rate=50)
        until(lambda: are_shared(owners(workers, rows), 3), 120, "all three share the tasks")
        its = {unit for unit, worker in owners(workers, rows).items() if worker == cut.name}
        before = starts_of(marks)
        proxy.cut(cut.is_connected)
        began = time.monotonic()
        url, cut.url = cut.url, ""  # nobody on its side is asked
        until(lambda: its <= _moved(workers, rows, others), 400, "others run what it ran")
        moved = time.monotonic() - began
        stand = [rows.count(topic) for topic in rows.topics]
        until(
            lambda: all(
                rows.count(one) > then for one, then in zip(rows.topics, stand, strict=True)
            ),
            180,
            "rows flow again",
        )
        flowed = time.monotonic() - began
        print(f"{cluster.kind}: others run it after {moved:.1f} s, rows flow after {flowed:.1f} s")
        if not TIMES:
            assert moved < MOST + at_most(START)
        # What had a living worker stayed there.
        began_anew = {unit for unit, count in starts_of(marks).items() if count > before[unit]}
        assert began_anew == its
        proxy.mend()
        mended = time.monotonic()
        until(lambda: are_shared(owners(workers, rows), 3), 180, "it has its share again")
        print(f"{cluster.kind}: it has its share {time.monotonic() - mended:.1f} s after the mend")
        cut.url = url
        expected = rows.finish()
        assert copies_that_overlap(list(read_marks(marks))) == []
        assert rows.problems(expected) == []


def _moved(workers: Workers, rows: Rows, others: list[Worker]) -> set[tuple[str, int]]:
    names = {one.name for one in others}
    return {unit for unit, worker in owners(workers, rows).items() if worker in names}
