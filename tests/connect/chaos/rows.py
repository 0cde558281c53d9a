"""Rows that go from sources through topics into PostgreSQL, and the check that each is there once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.connect.chaos import marked
from tests.connect.chaos.workers import Workers, until

__all__ = ["Rows", "problems_in"]

#: Two leases of a task on RocketMQ, and a batch: so long a table may stand still, s.
_STANDSTILL = 180
#: Of each source; each has a task of its own.
_PARTITIONS = 2
_RESTARTS = {
    "restart.max.attempts": "-1",
    "restart.pause.ms": "200",
    "restart.pause.max.ms": "1000",
}


def problems_in(dsn: str, table: str, rows: int) -> list[str]:
    """Name what is wrong with a table that should have the ids from 0 on, so many, each once."""
    counts = sql.SQL("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM {}")
    with psycopg.connect(dsn) as db:
        found = db.execute(counts.format(sql.Identifier(table))).fetchone()
    assert found is not None
    count, distinct, least, most = found
    wrong = []
    if distinct < rows:
        wrong.append(f"{table}: {rows - distinct} of {rows} rows are lost")
    if count > distinct:
        wrong.append(f"{table}: {count - distinct} rows are there more than once")
    if distinct and (least, most) != (0, rows - 1):
        wrong.append(f"{table}: ids from {least} to {most}, and not from 0 to {rows - 1}")
    return wrong


class Rows:
    """Two sources with two tasks each, and a sink with two tasks that reads both of their topics.

    Parameters
    ----------
    workers
        Who runs them.
    dsn
        The database.
    marks
        Folder of the marks of their tasks.
    topics
        One for each source; tables have their names, too.
    """

    def __init__(self, workers: Workers, dsn: str, marks: Path, topics: Sequence[str]) -> None:
        self._workers, self._dsn, self._marks, self.topics = workers, dsn, marks, tuple(topics)

    def begin(self, rate: int) -> None:
        """Make the connectors, the sources first: the sink needs their topics."""
        for topic in self.topics:
            self._put(f"from-{topic}", self._source(topic, rate))
        until(lambda: all(map(self._has_offsets, self.topics)), 180, "the sources begin")
        sink = {
            "connector.class": f"{marked.__name__}.MarkedPostgresSink",
            "topics": ",".join(self.topics),
            "tasks.max": "2",
            "value.converter": "json",
            "value.converter.schemas.enable": "false",
            "connection.url": self._dsn,
            "insert.mode": "insert",
            "auto.create": "true",
            "marks": str(self._marks),
            **_RESTARTS,
        }
        self._put("to-postgres", sink)
        until(lambda: all(self.count(topic) for topic in self.topics), 180, "the sink begins")

    def patch(self, rate: int) -> None:
        """Change a source that runs, whose tasks begin anew with that."""
        answer = self._workers.ask(
            self._workers.ready()[0],
            "PATCH",
            f"/connectors/from-{self.topics[0]}/config",
            json={"rate": str(rate)},
        )
        assert answer.status_code < 500 or answer.status_code == 503, answer.text

    def finish(self) -> int:
        """Let the sources come to an end; give how many rows each table must have, then.

        Tables say little of how far the sources are: sinks may be far behind after many strikes.
        """
        rows = 2 * max(map(self._made, self.topics)) + 2000
        for topic in self.topics:
            self._put(f"from-{topic}", self._source(topic, 0) | {"count": str(rows)})
        for topic in self.topics:
            self._await_rows(topic, rows)
        return rows

    def _await_rows(self, topic: str, rows: int) -> None:
        """Wait until a table has so many rows, for as long as it grows."""
        found = 0
        while found < rows:
            until(
                lambda before=found: self.count(topic) > before,  # type: ignore[misc]
                _STANDSTILL,
                f"more rows of {topic} than {found} of {rows}",
            )
            found = self.count(topic)

    def problems(self, rows: int) -> list[str]:
        """Name what is wrong with the tables."""
        return [text for topic in self.topics for text in problems_in(self._dsn, topic, rows)]

    def count(self, table: str) -> int:
        """Give the number of rows of a table, also where it is not there yet."""
        return self._one("SELECT count(*) FROM {}", table)

    def _made(self, topic: str) -> int:
        """Give how many rows a source has made, at least; it goes on meanwhile."""
        made = 0

        def ask() -> int:
            nonlocal made
            ends = [one["offset"]["row"] for one in self._offsets(topic)]
            made = _PARTITIONS * max(ends, default=0)
            return made

        until(ask, 60, f"where the source of {topic} is")
        return made

    def _one(self, query: str, table: str) -> int:
        with psycopg.connect(self._dsn) as db:
            if db.execute("SELECT to_regclass(%s)", [f'"{table}"']).fetchone() == (None,):
                return 0
            found = db.execute(sql.SQL(query).format(sql.Identifier(table))).fetchone()
        assert found is not None
        return int(str(found[0]))

    def _source(self, topic: str, rate: int) -> dict[str, str]:
        return {
            "connector.class": f"{marked.__name__}.MarkedDatagen",
            "topic": topic,
            "fields": '{"id": "sequence"}',
            "partitions": str(_PARTITIONS),
            "tasks.max": "2",
            "rate": str(rate),
            "marks": str(self._marks),
            **_RESTARTS,
        }

    def _put(self, name: str, config: dict[str, str]) -> None:
        worker = self._workers.ready()[0]
        answer = self._workers.ask(worker, "PUT", f"/connectors/{name}/config", json=config)
        assert answer.is_success, answer.text

    def _has_offsets(self, topic: str) -> bool:
        return len(self._offsets(topic)) == _PARTITIONS

    def _offsets(self, topic: str) -> list[Any]:
        told = self._workers.get(f"/connectors/from-{topic}/offsets")
        return told["offsets"] if told else []
