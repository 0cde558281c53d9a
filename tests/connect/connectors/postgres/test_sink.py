"""Topics become tables of a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headrace.connect import Queue, SchemaError, SinkRecord
from headrace.connect.connectors.postgres import PostgresSinkConnector
from headrace.connect.connectors.postgres.database import JSON_NAME, UUID_NAME
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    array,
    decimal as decimal_of,
    mapping,
    struct,
)
from headrace.errors import FencedError, ProcessingError, StateError
from tests.connect.connectors.postgres.conftest import Connection
from tests.connect.connectors.sinks import QUEUE, Life, ends, record

KEY = struct({"id": INT64})
VALUE = struct({"name": STRING.as_optional(), "count": INT64.as_optional()})
NewLife = Callable[..., Life]


@pytest.fixture
def life(dsn: str) -> NewLife:
    def make(config: dict[str, str] | None = None, **more: Any) -> Life:
        upsert = {"insert.mode": "upsert", "pk.mode": "record_key", "auto.create": "true"}
        common = {"connection.url": dsn, "connection.backoff.ms": "1"}
        return Life(PostgresSinkConnector, common | upsert | (config or {}), **more)

    return make


def row(offset: int, key: int, name: str | None, count: int | None = 1) -> SinkRecord:
    value = {"name": name, "count": count}
    return record(offset, value, {"id": key}, value_schema=VALUE, key_schema=KEY)


def tombstone(offset: int, key: int) -> SinkRecord:
    return record(offset, None, {"id": key}, key_schema=KEY)


def rows(db: Connection, table: str = "orders") -> list[tuple[object, ...]]:
    return db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


@pytest.mark.parametrize("count", [3, 200])
def test_upserts_create_the_table_and_keep_the_last_value(
    life: NewLife, db: Connection, count: int
) -> None:
    with life() as one:
        one.write([row(at, at % (count - 1), f"v{at}") for at in range(count)])
        assert one.offset == count
    assert len(rows(db)) == count - 1
    assert rows(db)[0] == (0, f"v{count - 1}", 1)


@pytest.mark.parametrize("count", [2, 100])
def test_records_without_a_value_delete(life: NewLife, db: Connection, count: int) -> None:
    with life({"delete.enabled": "true"}) as one:
        one.write([row(at, at, "x") for at in range(count)])
        deletes = [tombstone(count + at, at) for at in range(count - 1)]
        one.write([*deletes, row(2 * count, 0, "again")])
    assert rows(db) == [(0, "again", 1), (count - 1, "x", 1)]


@pytest.mark.parametrize("count", [2, 100])
def test_inserts_add_a_row_for_each_record(life: NewLife, db: Connection, count: int) -> None:
    with life({"insert.mode": "insert", "pk.mode": "none"}) as one:
        one.write([row(at, 1, "same") for at in range(count)])
    assert rows(db) == [("same", 1)] * count


@pytest.mark.parametrize("count", [2, 100])
def test_updates_change_only_rows_that_are_there(life: NewLife, db: Connection, count: int) -> None:
    db.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text, count bigint)")
    db.execute("INSERT INTO orders VALUES (1, 'old', 0)")
    with life({"insert.mode": "update"}) as one:
        one.write([row(at, at, "new") for at in range(count)])
    assert rows(db) == [(1, "new", 1)]


def test_place_in_the_topic_makes_inserts_harmless_to_repeat(life: NewLife, db: Connection) -> None:
    config = {"pk.mode": "coordinates", "exactly.once": "false"}
    batch = [record(at, {"a": at}) for at in range(3)]
    for _ in range(2):
        with life(config) as one:
            one.write(batch)
    assert [found[3:] for found in rows(db)] == [(0, 0), (1, 1), (2, 2)]


def test_new_fields_become_columns(life: NewLife, db: Connection) -> None:
    wide = struct({"name": STRING, "price": decimal_of(2)})
    with life({"auto.evolve": "true"}) as one:
        one.write([row(0, 1, "narrow")])
        value = {"name": "wide", "price": decimal.Decimal("9.99")}
        one.write([record(1, value, {"id": 2}, value_schema=wide, key_schema=KEY), row(2, 3, "n")])
    assert rows(db) == [
        (1, "narrow", 1, None),
        (2, "wide", None, decimal.Decimal("9.99")),
        (3, "n", 1, None),
    ]


def test_missing_table_and_column_name_the_key_that_makes_them(
    life: NewLife, db: Connection
) -> None:
    with life({"auto.create": "false"}) as one, pytest.raises(SchemaError, match=r"auto\.create"):
        one.write([row(0, 1, "x")])
    db.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text)")
    with life() as one, pytest.raises(SchemaError, match=r"no column count.*\n.*auto.evolve"):
        one.write([row(0, 1, "x")])


def test_every_type_arrives_whole(life: NewLife, db: Connection) -> None:
    zone = dt.UTC
    number = uuid.uuid4()
    fields = {
        "flag": (BOOLEAN, True),
        "small": (INT32, -5),
        "real": (FLOAT64, 1.5),
        "text": (STRING, "a\tb\\n\nü'\""),
        "raw": (BYTES, b"\x00\xff\\"),
        "price": (decimal_of(4), decimal.Decimal("12345678901234567890.1234")),
        "day": (DATE, dt.date(2024, 2, 29)),
        "clock": (TIME, dt.time(23, 59, 59, 5000)),
        "at": (TIMESTAMP, dt.datetime(2024, 1, 1, 12, tzinfo=zone)),
        "tags": (array(STRING), ["x", "y,z", None]),
        "extra": (mapping(STRING, INT64), {"a": 1}),
        "nested": (struct({"a": INT64}), {"a": 2}),
        "number": (STRING.changed(name=UUID_NAME), str(number)),
        "doc": (STRING.changed(name=JSON_NAME), '{"b": [1]}'),
    }
    schema = struct({name: kind for name, (kind, _) in fields.items()})
    value = {name: one for name, (_, one) in fields.items()}
    with life({"pk.mode": "none", "insert.mode": "insert"}) as one:
        one.write([record(at, value, value_schema=schema) for at in range(30)])
        one.write([record(30, value, value_schema=schema)])
    expected = (*tuple(value.values())[:12], number, {"b": [1]})
    assert rows(db) == [expected] * 31


def test_values_without_a_schema_become_columns(life: NewLife, db: Connection) -> None:
    with life({"auto.evolve": "true"}) as one:
        one.write([record(0, {"a": 1, "b": None}, {"id": "x"})])
        one.write([record(1, {"a": 2, "b": {"c": [1, 2]}}, {"id": "y"})])
    assert rows(db) == [("x", 1, None), ("y", 2, {"c": [1, 2]})]


def test_strings_fit_columns_of_other_types(life: NewLife, db: Connection) -> None:
    db.execute("CREATE TABLE orders (id uuid PRIMARY KEY, at timestamptz, doc jsonb, n int)")
    key = "11111111-2222-3333-4444-555555555555"
    value = {"at": "2024-01-01T00:00:00Z", "doc": '{"a": 1}', "n": "7"}
    with life() as one:
        one.write([record(at, value, {"id": key}) for at in range(2)])
        one.write(
            [record(at, value, {"id": key.replace("1", f"{at:x}"[0])}) for at in range(2, 40)]
        )
    found = db.execute("SELECT at, doc, n FROM orders").fetchone()
    assert found == (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), {"a": 1}, 7)


class TestBadRows:
    """The database refuses some rows."""

    def batch(self, *bad: int) -> list[SinkRecord]:
        return [row(at, at, "\x00" if at in bad else "good") for at in range(64)]

    def test_are_found_and_reported_while_the_others_are_written(
        self, life: NewLife, db: Connection
    ) -> None:
        with life(tolerant=True) as one:
            one.write(self.batch(5, 40, 63))
            assert one.errant_offsets == [5, 40, 63]
            assert one.offset == 64
        assert len(rows(db)) == 61

    def test_end_the_task_where_no_error_is_tolerated(self, life: NewLife, db: Connection) -> None:
        words = r"(?s)Table orders refuses record 5 of queue 0 of topic orders.*errors.tolerance"
        with life() as one:
            with pytest.raises(ProcessingError, match=words):
                one.write(self.batch(5, 40))
            with life(generation=2) as next_life:
                assert next_life.offset is None
        assert rows(db) == []

    def test_break_a_constraint_that_is_checked_at_the_commit(
        self, life: NewLife, db: Connection
    ) -> None:
        db.execute("CREATE TABLE people (name text PRIMARY KEY)")
        db.execute("INSERT INTO people VALUES ('good')")
        db.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, count bigint, name text"
            " REFERENCES people DEFERRABLE INITIALLY DEFERRED)"
        )
        with life(tolerant=True) as one:
            one.write([row(at, at, "bad" if at == 7 else "good") for at in range(30)])
            assert one.errant_offsets == [7]
        assert len(rows(db)) == 29

    def test_leave_the_value_that_the_key_had_before_in_the_same_batch(
        self, life: NewLife, db: Connection
    ) -> None:
        with life(tolerant=True) as one:
            one.write([row(0, 1, "good"), row(1, 1, "\x00")])
        assert rows(db) == [(1, "good", 1)]


class TestExactlyOnce:
    """Rows and offsets are one transaction."""

    @pytest.fixture
    def inserting(self, life: NewLife) -> NewLife:
        return lambda **more: life({"insert.mode": "insert", "pk.mode": "none"}, **more)

    def test_records_that_were_written_are_left_out_when_they_come_again(
        self, inserting: NewLife, db: Connection
    ) -> None:
        batch = [row(at, at, "x") for at in range(10)]
        with inserting() as one:
            one.write(batch)
        with inserting(generation=2) as two:
            assert two.offset == 10
            two.write([*batch, row(10, 10, "new")])
        assert len(rows(db)) == 11

    def test_a_task_that_dies_before_the_flush_has_written_nothing(
        self, inserting: NewLife, db: Connection
    ) -> None:
        batch = [row(at, at, "x") for at in range(10)]
        with inserting() as one:
            one.write(batch[:3])
            one.task.put(batch[3:])
        with inserting(generation=2) as two:
            assert two.offset == 3
            two.write(batch[3:])
        assert len(rows(db)) == 10

    def test_records_that_are_put_twice_before_the_flush_count_once(
        self, inserting: NewLife, db: Connection
    ) -> None:
        batch = [row(at, at, "x") for at in range(10)]
        with inserting() as one:
            one.task.put(batch)
            one.write(batch)
        assert len(rows(db)) == 10

    def test_records_behind_the_committed_offset_are_not_written(
        self, inserting: NewLife, db: Connection
    ) -> None:
        batch = [row(at, at, "x") for at in range(10)]
        with inserting() as one:
            one.task.put(batch)
            one.task.flush(ends(batch[:6]))
            assert len(rows(db)) == 6
            one.write(batch[6:])
        assert len(rows(db)) == 10

    def test_a_connection_that_is_cut_is_replaced(self, inserting: NewLife, db: Connection) -> None:
        with inserting() as one:
            one.write([row(0, 0, "x")])
            cut_others(db)
            one.write([row(1, 1, "y")])
        assert len(rows(db)) == 2

    def test_a_commit_whose_answer_is_lost_is_not_repeated(
        self, inserting: NewLife, db: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with inserting() as one:
            one.write([row(0, 0, "x")])
            transaction = psycopg.Connection.transaction
            calls = []

            def lose_first_answer(self: Any, *words: Any, **more: Any) -> Any:
                found = transaction(self, *words, **more)
                calls.append(found)
                if len(calls) > 1:
                    return found
                leave = found.__exit__

                def end(*error: Any) -> Any:
                    leave(*error)
                    self.close()
                    raise psycopg.OperationalError("the answer is lost")

                return Wrapped(found, end)

            monkeypatch.setattr(psycopg.Connection, "transaction", lose_first_answer)
            one.write([row(1, 1, "y")])
        assert len(rows(db)) == 2

    def test_a_zombie_cannot_write_once_another_task_has_its_queue(
        self, inserting: NewLife, db: Connection
    ) -> None:
        with inserting() as zombie:
            zombie.write([row(0, 0, "x")])
            with inserting(generation=2) as successor:
                with pytest.raises(FencedError, match=r"Queue 0 of topic orders .* taken over"):
                    zombie.write([row(1, 1, "zombie")])
                successor.write([row(1, 1, "y")])
        assert [found[0] for found in rows(db)] == ["x", "y"]

    def test_a_zombie_cannot_take_its_queue_back(self, inserting: NewLife) -> None:
        with (
            inserting(generation=5),
            pytest.raises(FencedError, match="generation 4"),
            inserting(generation=4),
        ):
            pass

    def test_a_zombie_that_hangs_in_its_transaction_is_cut_off(
        self, inserting: NewLife, db: Connection
    ) -> None:
        with inserting() as zombie:
            zombie.write([row(0, 0, "x")])
            database = zombie.task._database  # type: ignore[attr-defined]
            hanging = database.transaction()
            hanging.__enter__()
            zombie.task._offsets.store({QUEUE: 2})  # type: ignore[attr-defined]
            with inserting(generation=2) as successor:
                assert successor.offset == 1
                successor.write([row(1, 1, "y")])
            with pytest.raises(psycopg.OperationalError):
                hanging.__exit__(None, None, None)
        assert len(rows(db)) == 2

    def test_what_a_database_has_confirmed_and_lost_is_written_again(
        self, inserting: NewLife, db: Connection
    ) -> None:
        with inserting() as one:
            one.write([row(0, 0, "a")])
            one.write([row(1, 1, "b"), row(2, 2, "c")])
            # As a server does that comes back as it was before the second batch.
            db.execute("DELETE FROM orders WHERE name > 'a'")
            db.execute("UPDATE headrace_connect_offsets SET next_offset = 1")
            cut_others(db)
            with pytest.raises(StateError, match="up to offset 3, and has it up to 1 now"):
                one.write([row(3, 3, "d")])
        with inserting(generation=2) as two:
            assert two.offset == 1
            two.write([row(at, at, name) for at, name in enumerate("bcd", 1)])
        assert {name for (name, _) in rows(db)} == {"a", "b", "c", "d"}

    def test_queues_of_other_tasks_are_left_alone(self, inserting: NewLife) -> None:
        other = Queue("orders", "broker-a", 1)
        with inserting() as one, inserting(queues=[other]) as two:
            one.write([row(0, 0, "x")])
            two.write([record(0, {"name": "y", "count": 1}, queue=other, value_schema=VALUE)])
            one.write([row(1, 1, "x")])
            assert (one.offset, two.offset) == (2, 1)

    def test_offsets_are_set_by_hand(self, inserting: NewLife, db: Connection) -> None:
        with inserting() as one:
            one.write([row(at, at, "x") for at in range(3)])
        connector = PostgresSinkConnector()
        connector.context = one.context  # type: ignore[assignment]
        config = connector.config.parse(one.config)
        where = {
            "rocketmq_topic": "orders",
            "rocketmq_broker": "broker-a",
            "rocketmq_queue_id": 0,
        }
        assert connector.alter_offsets(config, [(where, {"rocketmq_queue_offset": 1})])
        with inserting(generation=2) as two:
            assert two.offset == 1
        assert connector.alter_offsets(config, [(where, None)])
        with inserting(generation=3) as three:
            assert three.offset is None


class Wrapped:
    def __init__(self, inner: Any, end: Callable[..., Any]) -> None:
        self.inner, self.end = inner, end

    def __enter__(self) -> Any:
        return self.inner.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self.end(*error)


def cut_others(db: Connection) -> None:
    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_a_table_that_changed_meanwhile_is_looked_up_again(life: NewLife, db: Connection) -> None:
    with life({"auto.evolve": "true"}) as one:
        one.write([row(0, 0, "x")])
        db.execute("ALTER TABLE orders DROP COLUMN count")
        one.write([row(1, 1, "y")])
    assert rows(db) == [(0, "x", None), (1, "y", 1)]


def test_user_who_may_not_create_tables_uses_those_that_are_there(
    life: NewLife, db: Connection
) -> None:
    with life() as one:
        one.write([row(0, 0, "x")])
    db.execute("CREATE USER careful")
    try:
        db.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO careful")
        dsn = {"connection.url": one.config["connection.url"].replace("user=postgres ", "")}
        with life({**dsn, "connection.user": "careful"}, generation=2) as two:
            two.write([row(at, at, "y") for at in range(1, 40)])
            assert two.offset == 40
    finally:
        db.execute("DROP OWNED BY careful")
        db.execute("DROP USER careful")


def test_password_is_not_in_what_is_printed(life: NewLife) -> None:
    one = life({"connection.password": "swordfish"})
    assert "swordfish" not in repr(PostgresSinkConnector.config.parse(one.config))
