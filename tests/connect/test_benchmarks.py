"""Every benchmark of Connect works; what it measures is not looked at here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import (
    connect_files,
    connect_kafka,
    connect_many,
    connect_neighbours,
    connect_postgres,
    connect_s3,
    connect_start,
    connect_stuck,
)
from benchmarks.clusters import embedded
from benchmarks.connect_worker import running_connect
from benchmarks.measures import Plan
from benchmarks.sizes import SMALL
from benchmarks.targets import TARGETS

pytestmark = pytest.mark.slow


def plan() -> Plan:
    return Plan(1, SMALL)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_worker_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # One worker for all: its start takes longer than what is measured.
    found: dict[str, float] = {}

    def keep(runs: Iterable[Mapping[str, float]]) -> None:
        for run in runs:
            found.update(run)

    with (
        embedded() as (address, _),
        running_connect(
            address, tmp_path / "worker", SMALL.patience, "--plugins", connect_stuck.CHAOS
        ) as worker,
    ):
        for module in (
            connect_files,
            connect_postgres,
            connect_kafka,
            connect_s3,
            connect_start,
            connect_stuck,
            connect_many,
            connect_neighbours,
        ):
            place = nullcontext((address, tmp_path))
            monkeypatch.setattr(module, "embedded", lambda place=place: place)
            monkeypatch.setattr(module, "running_connect", lambda *_: nullcontext(worker))
        keep(connect_files.connect_files(plan()))
        keep(connect_postgres.connect_postgres(plan()))
        keep(connect_postgres.connect_postgres_source(plan()))
        keep(connect_kafka.connect_kafka(plan()))
        keep(connect_s3.connect_s3(plan()))
        keep(connect_start.connect_first_row(plan()))
        keep(connect_stuck.connect_beside_stuck(plan()))
        keep(connect_many.connect_100(plan()))
        keep(connect_neighbours.connect_neighbours(plan()))
    assert set(found) == {one for one in TARGETS if one.startswith("connect_") and "/" not in one}
    assert {name for name, value in found.items() if not value > 0} == set()


def test_lines_that_are_lost_or_come_twice_are_noticed(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    connect_files.write_lines(lines, SMALL)
    written = lines.read_bytes().splitlines()
    connect_files.assert_all_once(written, SMALL.connect_lines)
    with pytest.raises(AssertionError, match="1 of 20000 lines are lost"):
        connect_files.assert_all_once(written[:70] + written[71:], SMALL.connect_lines)
    with pytest.raises(AssertionError, match="1 of 20000 lines came more than once"):
        connect_files.assert_all_once([*written, written[5]], SMALL.connect_lines)
