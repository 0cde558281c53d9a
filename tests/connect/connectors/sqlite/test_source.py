from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.connect import RetriableError
from headrace.connect.connectors.sqlite import SqliteSourceConnector
from headrace.errors import ConnectorConfigError, SchemaError
from tests.connect.connectors.runs import SourceRun, configured, problems, source


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, at TEXT)")
        yield connection


def texts(path: Path, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    fixed = {"database": str(path), "poll.interval.ms": "0"}
    return fixed | ({} if "query" in more else {"tables": "orders"}) | given


def order(database: sqlite3.Connection, *items: str, at: str = "1") -> None:
    database.executemany(
        "INSERT INTO orders (item, at) VALUES (?, ?)", [(item, at) for item in items]
    )


def items(run: SourceRun) -> list[str]:
    return [value["item"] for value in run.values()]


def test_new_rows_become_records(path: Path, database: sqlite3.Connection) -> None:
    order(database, "a", "b")
    with source(SqliteSourceConnector, texts(path, topic_prefix="shop-")) as run:
        first, second = run.poll()
        assert (first.topic, first.key, first.value) == (
            "shop-orders",
            1,
            {"id": 1, "item": "a", "at": "1"},
        )
        assert (second.partition, second.offset) == ({"table": "orders"}, {"incrementing": 2})
        order(database, "c")
        assert items(run) == ["c"]


@pytest.mark.parametrize("mode", ["incrementing", "timestamp"])
def test_restart_goes_on_after_what_was_committed(
    path: Path, database: sqlite3.Connection, mode: str
) -> None:
    order(database, "a", "b", "c")
    config = texts(path, mode=mode, timestamp_column_name="at", batch_max_rows="2")
    with source(SqliteSourceConnector, config) as run:
        assert len(run.values()) == 3
        order(database, "d", "e")
        run.poll()
        run.kill()
        assert items(run) == ["d", "e"]
        run.kill()
        assert run.values() == []


def test_changed_rows_come_again_by_their_time(path: Path, database: sqlite3.Connection) -> None:
    order(database, "a", "b", at="2026-01-01 00:00:00.000")
    with source(
        SqliteSourceConnector, texts(path, mode="timestamp", timestamp_column_name="at")
    ) as run:
        assert items(run) == ["a", "b"]
        database.execute("UPDATE orders SET item = 'a2', at = '2026-01-02' WHERE id = 1")
        order(database, "c", at="2026-01-02")  # of the same time, told apart by its number
        assert items(run) == ["a2", "c"]
        database.execute("UPDATE orders SET item = 'b2', at = NULL WHERE id = 2")
        assert run.values() == []


def test_bulk_gives_all_rows_again_and_again(path: Path, database: sqlite3.Connection) -> None:
    order(database, "a", "b", "c")
    with source(SqliteSourceConnector, texts(path, mode="bulk", batch_max_rows="2")) as run:
        assert [value["item"] for value in run.values(rounds=2)] == ["a", "b", "c"]
        run.kill()
        assert [record.offset for record in run.poll(rounds=3)] == [
            {"load": 1, "incrementing": 1},
            {"load": 1, "incrementing": 2},
            {"load": 1, "incrementing": 3},
        ]


def test_query_is_read_like_a_table(path: Path, database: sqlite3.Connection) -> None:
    order(database, "a", "b", "c")
    config = texts(
        path,
        query="SELECT id AS n, upper(item) AS item FROM orders WHERE item <> 'b'",
        topic_prefix="loud",
        incrementing_column_name="n",
        key_fields="n,item",
    )
    with source(SqliteSourceConnector, config) as run:
        records = run.poll()
        assert [record.value["item"] for record in records] == ["A", "C"]
        assert records[0].key == {"n": 1, "item": "A"}
        assert records[0].partition == {"query": "loud"}


def test_tables_that_match_come_and_are_shared(path: Path, database: sqlite3.Connection) -> None:
    for number in range(6):
        database.execute(f"CREATE TABLE t{number} (v)")
        database.execute(f"INSERT INTO t{number} VALUES ({number})")
    with source(SqliteSourceConnector, texts(path, tables="t*"), tasks=3) as run:
        assert sorted(value["v"] for value in run.values()) == list(range(6))
        database.execute("CREATE TABLE t_new (v)")
        database.execute("INSERT INTO t_new VALUES ('late')")
        assert run.values() == [{"v": "late"}]
    assert len(configured(SqliteSourceConnector, texts(path)).task_configs(4)) == 1


def test_rows_have_the_schema_of_their_columns_where_wanted(
    path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE t (a INT, b DOUBLE, c BOOLEAN, d VARCHAR(9), e DATE, f BLOB)")
    database.execute("INSERT INTO t VALUES (1, 2, 1, 'x', '2026-01-01', x'ff')")
    with source(SqliteSourceConnector, texts(path, tables="t", schemas="declared")) as run:
        (record,) = run.poll()
        assert record.value == {
            "a": 1,
            "b": 2.0,
            "c": True,
            "d": "x",
            "e": "2026-01-01",
            "f": b"\xff",
        }
        assert str(record.value_schema) == (
            "struct t {a: int64?, b: double?, c: boolean?, d: string?, e: string?, f: bytes?}"
        )
        database.execute("ALTER TABLE t ADD COLUMN g TEXT")
        database.execute("INSERT INTO t (g) VALUES ('new')")
        assert run.poll()[0].value["g"] == "new"
        database.execute("INSERT INTO t (a) VALUES ('text')")
        with pytest.raises(SchemaError, match="column a of t is int64, and a row of it holds 'te"):
            run.poll()


def test_column_without_a_type_is_named(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE t (a)")
    run = SourceRun(SqliteSourceConnector, texts(path, tables="t", schemas="declared"))
    with pytest.raises(SchemaError, match="column a of t was declared as ''"):
        run.poll()
    run.stop()


@pytest.mark.parametrize("setting", ["incrementing.column.name", "timestamp.column.name"])
def test_column_that_is_not_there_is_named(
    path: Path, database: sqlite3.Connection, setting: str
) -> None:
    order(database, "a")
    mode = "timestamp" if "timestamp" in setting else "incrementing"
    run = SourceRun(SqliteSourceConnector, texts(path, mode=mode) | {setting: "nope"})
    with pytest.raises(ConnectorConfigError, match="no such column: nope"):
        run.poll()
    run.stop()


def test_number_that_is_null_is_named(path: Path, database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO orders (item) VALUES (NULL)")
    run = SourceRun(SqliteSourceConnector, texts(path, incrementing_column_name="item"))
    with pytest.raises(ConnectorConfigError, match="whose item is None"):
        run.poll()
    run.stop()


def test_locked_database_is_read_later(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, at TEXT)")
        order(database, "a")
        with source(SqliteSourceConnector, texts(path, busy_timeout_ms="1")) as run:
            run.values()
            order(database, "b")
            database.execute("BEGIN EXCLUSIVE")
            with pytest.raises(RetriableError, match="orders cannot be read now"):
                run.tasks[0]._readers["orders"].read()  # type: ignore[attr-defined]
            database.execute("ROLLBACK")
            assert items(run) == ["b"]


def test_row_that_does_not_fit_loses_none_before_it(
    path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE t (a INT)")
    database.executemany("INSERT INTO t VALUES (?)", [(1,), ("x",)])
    with source(SqliteSourceConnector, texts(path, tables="t", schemas="declared")) as run:
        with pytest.raises(SchemaError):
            run.poll()
        database.execute("UPDATE t SET a = 2 WHERE a = 'x'")
        assert run.values() == [{"a": 1}, {"a": 2}]


def test_config_that_cannot_be_is_named(path: Path) -> None:
    assert "either tables or a query" in problems(SqliteSourceConnector, {"database": "x"})[0]
    assert "topic.prefix names" in problems(SqliteSourceConnector, texts(path, query="SELECT 1"))[0]
    assert (
        "needs timestamp.column"
        in problems(SqliteSourceConnector, texts(path, mode="timestamp"))[0]
    )
    with pytest.raises(ConnectorConfigError, match=r"shop\.db does not exist"):
        SourceRun(SqliteSourceConnector, texts(path))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["insert", "poll", "commit", "kill"]), max_size=20))
def test_every_row_is_committed_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path = tmp_path_factory.mktemp("source") / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, at TEXT)")
        wrote = 0
        with source(SqliteSourceConnector, texts(path, batch_max_rows="2")) as run:
            for step in [*steps, "commit"]:
                if step == "insert":
                    order(database, *(str(wrote + more) for more in range(3)))
                    wrote += 3
                elif step == "poll":
                    run.poll(rounds=1)
                elif step == "commit":
                    run.commit()
                else:
                    run.kill()
            run.values(rounds=wrote + 2)
            found = [record.value["item"] for record in run.records]
    assert found == [str(number) for number in range(wrote)]
