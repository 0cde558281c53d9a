from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import SinkRecord
from headrace.connect.connectors.sqlite import SqliteSinkConnector
from headrace.connect.schema import BOOLEAN, INT64, STRING, TIMESTAMP, decimal, struct
from headrace.errors import (
    ConnectionFailedError,
    ConnectorConfigError,
    FencedError,
    ProcessingError,
)
from tests.connect.connectors.runs import QUEUE, SinkRun, configured, sink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


def texts(path: Path, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"database": str(path), "auto.create": "true", **given}


def upserts(path: Path, **more: str) -> dict[str, str]:
    by_key = {"insert_mode": "upsert", "pk_mode": "record_key", "pk_fields": "id"}
    return texts(path, **by_key, delete_enabled="true", **more)


def rows(path: Path, statement: str = "SELECT * FROM lines ORDER BY 1") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def test_records_become_rows(path: Path) -> None:
    with sink(SqliteSinkConnector, texts(path)) as run:
        run.put([{"a": 1, "b": "x"}, {"a": 2, "b": None}])
        run.commit()
    assert rows(path) == [(1, "x"), (2, None)]


def test_keys_decide_which_row_is_replaced_or_deleted(path: Path) -> None:
    with sink(SqliteSinkConnector, upserts(path)) as run:
        for key, value in ((1, {"v": "a"}), (2, {"v": "b"}), (1, {"v": "c"}), (2, None)):
            run.put([value], key=key)
        run.commit()
    assert rows(path) == [(1, "c")]


def test_types_of_connect_have_a_form(path: Path) -> None:
    fields = {"id": INT64, "ok": BOOLEAN, "price": decimal(2), "at": TIMESTAMP, "name": STRING}
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    value = {"id": 1, "ok": True, "price": Decimal("1.50"), "at": moment, "name": "x"}
    with sink(SqliteSinkConnector, texts(path)) as run:
        run.put([value], value_schema=struct(fields))
        run.commit()
    assert rows(path) == [(1, 1, "1.50", "2026-01-02 03:04:05+00:00", "x")]
    types = rows(path, "SELECT type FROM pragma_table_info('lines')")
    assert [kind for (kind,) in types] == ["INTEGER", "BOOLEAN", "TEXT", "TEXT", "TEXT"]


def test_new_fields_become_columns(path: Path) -> None:
    with sink(SqliteSinkConnector, texts(path, auto_evolve="true")) as run:
        run.put([{"a": 1}])
        run.commit()
        run.put([{"a": 2, "b": [1, {"c": Decimal("2.5")}]}])
        run.commit()
    assert rows(path) == [(1, None), (2, '[1,{"c":"2.5"}]')]


@pytest.mark.requirement(45)
def test_rows_and_offsets_are_one_transaction(path: Path) -> None:
    with sink(SqliteSinkConnector, texts(path)) as run:
        run.put([{"a": 1}])
        run.flush()  # and the runtime dies before its own commit
        run.put([{"a": 2}])
        run.kill()
        assert run.next == {QUEUE: 1}
        run.put([{"a": 2}])
        run.commit()
    assert rows(path) == [(1,), (2,)]


def test_same_records_again_are_written_once(path: Path) -> None:
    records = [SinkRecord(topic="lines", queue=QUEUE, offset=n, value={"a": n}) for n in range(3)]
    with sink(SqliteSinkConnector, texts(path)) as run:
        run.task.put(records[:2])
        run.task.put(records)
        run.task.flush({QUEUE: 3})
        run.task.put(records)
        run.task.flush({QUEUE: 3})
    assert rows(path) == [(0,), (1,), (2,)]


def test_task_that_was_replaced_may_not_write(path: Path) -> None:
    with sink(SqliteSinkConnector, texts(path)) as old:
        old.put([{"a": "old"}])
        with sink(SqliteSinkConnector, texts(path)) as new:
            with pytest.raises(FencedError, match="taken over by another task"):
                old.flush()
            new.put([{"a": "new"}])
            new.commit()
    assert rows(path) == [("new",)]


def test_row_that_is_refused_is_reported_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE lines (a INTEGER CHECK (a > 0))")
    with sink(SqliteSinkConnector, texts(path), tolerant=True) as run:
        run.put([{"a": 1}, {"a": -1}, {"a": 2**70}, {"a": 3}])
        run.commit()
        assert [record.value["a"] for record, _ in run.reported] == [-1, 2**70]
    assert rows(path) == [(1,), (3,)]
    with sink(SqliteSinkConnector, texts(path)) as strict:
        strict.put([{"a": -1}])
        with pytest.raises(ProcessingError, match="Table lines refuses record 4"):
            strict.flush()


def test_writer_waits_for_another(path: Path) -> None:
    quick = texts(path, busy_timeout_ms="1", connection_backoff_ms="1", connection_attempts="3")
    with sink(SqliteSinkConnector, quick) as run, closing(sqlite3.connect(path)) as other:
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        run.put([{"a": 1}])
        with pytest.raises(ConnectionFailedError, match="locked"):
            run.flush()
        other.execute("ROLLBACK")
        run.flush()
    assert rows(path) == [(1,)]


def test_readers_see_rows_while_the_sink_is_open(path: Path) -> None:
    with sink(SqliteSinkConnector, texts(path)) as run:
        run.put([{"a": 1}])
        run.commit()
        assert rows(path) == [(1,)]


def test_one_file_has_one_task(path: Path) -> None:
    assert len(configured(SqliteSinkConnector, texts(path)).task_configs(4)) == 1


def test_offsets_can_be_set_by_hand(path: Path) -> None:
    connector = configured(SqliteSinkConnector, texts(path))
    connector.context.connector = "tested"
    where = {
        "rocketmq_topic": QUEUE.topic,
        "rocketmq_broker": QUEUE.broker,
        "rocketmq_queue_id": QUEUE.queue_id,
    }
    config = connector.context.config
    assert connector.alter_offsets(config, [(where, {"rocketmq_queue_offset": 5})])
    with sink(SqliteSinkConnector, texts(path)) as run:
        assert run.next == {QUEUE: 5}


def test_missing_folder_fails_the_task(tmp_path: Path) -> None:
    with pytest.raises(ConnectorConfigError, match="no of the database"):
        SinkRun(SqliteSinkConnector, texts(tmp_path / "no" / "x.db"))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["put", "flush", "commit", "kill"]), max_size=15))
def test_every_record_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path = tmp_path_factory.mktemp("sink") / "out.db"
    with sink(SqliteSinkConnector, texts(path)) as run:
        for step in [*steps, "put", "commit"]:
            if step == "put":
                at = run._put.get(QUEUE, 0)
                run.put([{"a": at}, {"a": at + 1}])
            elif step == "flush":
                run.flush()
            elif step == "commit":
                run.commit()
            else:
                run.kill()
        reached = run._put[QUEUE]
    assert rows(path) == [(number,) for number in range(reached)]
