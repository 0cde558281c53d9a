"""Three workers that are struck at random while connectors are put, patched and deleted.

Never two live copies of a task, no acknowledged config lost, no row lost or doubled.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.connect.chaos.marked import Mark, read_marks
from tests.connect.chaos.rows import Rows
from tests.connect.chaos.storm import Storm
from tests.connect.chaos.workers import DELAY, running_workers, until
from tests.connect.servers.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MINUTES = float(os.environ.get("MINUTES", "10"))
SEED = int(os.environ.get("FAULTS_SEED", "0")) or random.randrange(1, 1_000_000)
#: What is done to workers, and how often compared with the others.
STRIKES = {"worker": 3, "host": 4, "engine": 2, "stillness": 2}


@pytest.fixture
def dsn(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as words:
        yield words


def copies_that_overlap(marks: list[Mark]) -> list[str]:
    """Name tasks that began while another copy of them lived, or after a later one."""
    wrong = [f"two live copies: {mark}" for mark in marks if mark.what == "twice"]
    newest: dict[tuple[str, int], int] = {}
    for mark in (mark for mark in marks if mark.what == "start"):
        unit = (mark.connector, mark.task)
        if mark.generation < newest.get(unit, 0):
            wrong.append(f"an older copy began after generation {newest[unit]}: {mark}")
        newest[unit] = max(mark.generation, newest.get(unit, 0))
    return wrong


def endure(
    cluster: Cluster,
    dsn: str,
    folder: Path,
    *,
    seconds: float,
    pause: tuple[float, float],
    strikes: Mapping[str, int] = STRIKES,
) -> None:
    """Run the storm and the strikes for a while; then everything must be there."""
    print(f"seed {SEED}")
    chance, marks = random.Random(SEED), folder / "marks"
    began = time.monotonic()
    with running_workers(cluster.namesrv, folder) as workers:
        storm = Storm(workers, marks, chance)
        rows = Rows(workers, dsn, marks, [f"rows-{cluster.kind}-{SEED}-{one}" for one in "ab"])
        rows.begin(rate=500)
        end, struck = time.monotonic() + seconds, time.monotonic()
        wait = chance.uniform(*pause)
        while time.monotonic() < end:
            workers.tend()
            storm.step()
            if time.monotonic() - struck > wait:
                workers.strike(chance, strikes)
                struck, wait = time.monotonic(), chance.uniform(*pause)
                if chance.random() < 0.3 and workers.ready():
                    rows.patch(chance.choice([300, 400, 500]))
            time.sleep(chance.uniform(0.1, 0.5))
        workers.calm_down()
        expected = rows.finish()
        until(lambda: not storm.problems(), 3 * DELAY, "what was acknowledged holds on all workers")
        overlaps = copies_that_overlap(list(read_marks(marks)))
        starts = sum(mark.what == "start" for mark in read_marks(marks))
        minutes = (time.monotonic() - began) / 60
        print(
            f"{cluster.kind}: strikes {dict(workers.strikes)}, requests {dict(storm.answers)},"
            f" {starts} starts of tasks, 2 x {expected} rows, {minutes:.1f} minutes"
        )
        assert overlaps == []
        assert rows.problems(expected) == []
        assert workers.strikes.total()


@pytest.mark.requirement(39)
@pytest.mark.requirement(49)
@pytest.mark.requirement(53)
@pytest.mark.timeout(900)
def test_struck_workers_lose_no_config_and_no_row_and_run_nothing_twice(
    embedded: Cluster, dsn: str, tmp_path: Path
) -> None:
    quick = {"worker": 2, "host": 3, "engine": 1}
    endure(embedded, dsn, tmp_path, seconds=30, pause=(3, 6), strikes=quick)


@pytest.mark.soak
@pytest.mark.requirement(53)
def test_minutes_of_strikes(cluster: Cluster, dsn: str, tmp_path: Path) -> None:
    endure(cluster, dsn, tmp_path, seconds=60 * MINUTES, pause=(4, 15))
