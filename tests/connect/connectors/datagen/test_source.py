from __future__ import annotations

from typing import Any

import pytest

from headrace.connect.connectors.datagen import DatagenSourceConnector
from headrace.connect.schema import TIMESTAMP_NAME
from tests.connect.connectors.runs import problems, source

FAST = {"topic": "orders", "rate": "0"}


def test_rows_are_the_same_after_a_kill() -> None:
    config = FAST | {"batch.max.rows": "10"}
    with source(DatagenSourceConnector, config) as run:
        rows = run.values(rounds=2)
        run.poll(rounds=3)
        run.kill()
        rows += run.values(rounds=2)
    with source(DatagenSourceConnector, config) as run:
        assert run.values(rounds=4) == rows
    assert [row["orderid"] for row in rows] == list(range(40))


def test_count_ends_the_rows() -> None:
    with source(DatagenSourceConnector, FAST | {"count": "25", "batch.max.rows": "10"}) as run:
        assert len(run.poll()) == 25
        assert run.poll() == []


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_tasks_share_partitions_without_overlap(tasks: int) -> None:
    config = FAST | {"count": "100", "partitions": "3", "batch.max.rows": "7"}
    with source(DatagenSourceConnector, config, tasks) as run:
        assert sorted(row["orderid"] for row in run.values(rounds=60)) == list(range(100))


def test_rate_bounds_the_rows() -> None:
    with source(DatagenSourceConnector, {"topic": "t", "rate": "1000"}) as run:
        assert len(run.poll(rounds=1)) < 100


def test_fields_give_key_and_time() -> None:
    fields = (
        '{"id": "sequence", "at": {"type": "time", "start": "1970-01-01T00:00:05Z"},'
        ' "name": {"type": "choice", "values": ["x"]}}'
    )
    more = {"fields": fields, "key.field": "id", "timestamp.field": "at", "count": "2"}
    with source(DatagenSourceConnector, FAST | more) as run:
        records = run.poll()
    assert [record.key for record in records] == [0, 1]
    assert [record.timestamp_ms for record in records] == [5000, 6000]
    assert str(records[0].key_schema) == "int64"
    assert records[0].value_schema is not None
    assert records[0].value_schema.field("at").schema.is_a(TIMESTAMP_NAME)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"template": "nothing"}, "template is 'nothing'"),
        ({"template": "users", "fields": "{}"}, "either template or fields"),
        ({"fields": '{"a": "b"}'}, "The field 'a' of the key fields cannot be"),
        ({"fields": "["}, "is no JSON object"),
        ({"key.field": "id"}, "the fields are orderid, ordertime"),
    ],
)
def test_config_that_cannot_be_is_named(more: dict[str, Any], problem: str) -> None:
    assert problem in problems(DatagenSourceConnector, FAST | more)[0]
