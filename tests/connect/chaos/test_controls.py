"""Controls of the chaos tests: what they look for is seen when it is there.

The lease is turned off in ``tests/connect/coordination/test_fencing.py``, where a second copy of a
task is seen then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from headrace.connect import Queue, SinkConnector, SinkTask
from headrace.connect.connectors.postgres import PostgresSinkConnector
from headrace.connect.connectors.postgres.database import PostgresSinkTask
from headrace.connect.connectors.sql.sink import OffsetTable
from headrace.errors import FencedError
from tests.connect.chaos.marked import Mark
from tests.connect.chaos.rows import problems_in
from tests.connect.chaos.test_chaos import copies_that_overlap
from tests.connect.connectors.sinks import Life, record
from tests.connect.servers.postgres import PostgresServer

ROWS = 40


class UnfencedOffsets(OffsetTable):
    """Offsets that whoever comes last may move."""

    def store(self, offsets: Mapping[Queue, int]) -> None:
        self.claim(offsets)
        super().store(offsets)


class UnfencedTask(PostgresSinkTask):
    """The sink without its fence."""

    def _offset_table(self, owner: str) -> OffsetTable:
        held = super()._offset_table(owner)
        fields = (held.database, held.name, held.sink, held.owner, held.generation)
        return UnfencedOffsets(*fields)

    def _claim(self, queues: Sequence[Queue]) -> None:  # type: ignore[override]
        assert self._offsets is not None
        with self._database.transaction():
            self._offsets.claim(queues)
            self._done.update(self._offsets.read(queues))


class UnfencedSink(PostgresSinkConnector):
    """The connector of `UnfencedTask`."""

    task: type[SinkTask] = UnfencedTask  # type: ignore[misc]


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as words:
        yield words


def write_beside_a_zombie(connector: type[SinkConnector], dsn: str, name: str) -> None:
    """Have an old copy of a task go on after its successor has begun, with the same records."""
    config = {
        "connection.url": dsn,
        "auto.create": "true",
        "table.name.format": name,
        "offsets.name": name,
    }
    batch = [record(number, {"id": number}) for number in range(ROWS)]
    with Life(connector, config) as old, Life(connector, config) as new:
        new.write(batch)
        old.write(batch)


def test_rows_that_an_old_copy_writes_are_noticed(dsn: str) -> None:
    write_beside_a_zombie(UnfencedSink, dsn, "unfenced")
    assert problems_in(dsn, "unfenced", ROWS) == [f"unfenced: {ROWS} rows are there more than once"]


def test_the_fence_keeps_them_out(dsn: str) -> None:
    with contextlib.suppress(FencedError):  # it may also see that there is nothing left to write
        write_beside_a_zombie(PostgresSinkConnector, dsn, "fenced")
    assert problems_in(dsn, "fenced", ROWS) == []


def test_rows_that_are_missing_are_noticed(dsn: str) -> None:
    config = {"connection.url": dsn, "auto.create": "true", "table.name.format": "short"}
    with Life(PostgresSinkConnector, config) as life:
        life.write([record(number, {"id": number}) for number in range(ROWS - 1)])
    assert "short: 1 of 40 rows are lost" in problems_in(dsn, "short", ROWS)


def test_copies_that_overlap_are_noticed() -> None:
    def mark(what: str, generation: int, at: float) -> Mark:
        return Mark(what, "a", 0, generation, 1, at)

    assert copies_that_overlap([mark("start", 3, 1), mark("stop", 3, 2), mark("start", 7, 3)]) == []
    twice = [mark("start", 3, 1), mark("twice", 7, 2), mark("start", 7, 2)]
    assert "two live copies" in copies_that_overlap(twice)[0]
    assert (
        "an older copy began" in copies_that_overlap([mark("start", 7, 1), mark("start", 3, 2)])[0]
    )
