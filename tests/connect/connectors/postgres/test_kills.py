"""A sink's process is killed again and again: no row is lost, none is doubled."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.connect.connectors.postgres.conftest import Connection

ROWS = 4000
KILLS = 5
PROGRAM = f"""
import sys
from headrace.connect.connectors.postgres import PostgresSinkConnector
from tests.connect.connectors.sinks import Life, record

config = {{"connection.url": sys.argv[1], "auto.create": "true"}}
with Life(PostgresSinkConnector, config, generation=int(sys.argv[2])) as life:
    at = life.offset or 0
    while at < {ROWS}:
        batch = [record(number, {{"id": number}}) for number in range(at, at + 40)]
        life.write(batch)
        at += 40
"""


def writer(dsn: str, generation: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dsn, str(generation)],
        cwd=Path(__file__).parents[4],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def count(db: Connection) -> int:
    if db.execute("SELECT to_regclass('orders')").fetchone() == (None,):
        return 0
    found = db.execute("SELECT count(*) FROM orders").fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.slow
def test_killed_sink_loses_and_doubles_nothing(dsn: str, db: Connection) -> None:
    seed = random.randrange(1000)
    print("seed", seed)
    chance = random.Random(seed)
    killed = 0
    for generation in range(1, KILLS + 1):
        with writer(dsn, generation) as process:
            wanted = count(db) + chance.randrange(400)
            deadline = time.monotonic() + 60
            while process.poll() is None and count(db) <= wanted:
                assert time.monotonic() < deadline, "nothing was written"
            killed += process.poll() is None
            process.kill()
    with writer(dsn, KILLS + 1) as process:
        assert process.wait(timeout=90) == 0
    assert killed, "the sink was always quicker"
    assert db.execute("SELECT count(*), count(DISTINCT id), max(id) FROM orders").fetchone() == (
        ROWS,
        ROWS,
        ROWS - 1,
    )
