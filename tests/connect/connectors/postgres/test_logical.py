"""Changes of a real PostgreSQL's tables become records, by logical replication."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest

from headrace.connect import SchemaError, SourceBatch, SourceRecord
from headrace.connect.connectors.postgres import PostgresSourceConnector
from headrace.connect.connectors.postgres.logical import default_name
from headrace.connect.testing.contexts import KitOffsets
from headrace.errors import ConnectorConfigError, StateError
from tests.connect.connectors.postgres.conftest import Connection
from tests.connect.connectors.sources import NewSourceLife, SourceLife

BASE = {"tables": "orders", "mode": "logical", "heartbeat.interval.ms": "10"}
SLOT = "headrace_source"
_TOAST = "x" * 100


@pytest.fixture
def committed() -> KitOffsets:
    return KitOffsets()


@pytest.fixture
def life(dsn: str, committed: KitOffsets) -> NewSourceLife:
    slot = f"slot_{dsn.rpartition('_')[2]}"

    def make(config: dict[str, str] | None = None) -> SourceLife:
        texts = {"connection.url": dsn, "slot.name": slot} | BASE | (config or {})
        return SourceLife(PostgresSourceConnector, texts, committed)

    return make


@pytest.fixture
def orders(db: Connection) -> Connection:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, name text)")
    return db


def rows(records: list[SourceRecord]) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in records]


def row(number: int, name: str | None) -> tuple[Any, Any]:
    return {"id": number}, {"id": number, "name": name}


def test_rows_that_are_there_come_first_and_changes_follow(
    life: NewSourceLife, orders: Connection
) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    with life() as one:
        assert rows(one.until(2)) == [row(1, "a"), row(2, "b")]
        orders.execute("INSERT INTO orders VALUES (3, 'c')")
        orders.execute("UPDATE orders SET name = 'A' WHERE id = 1")
        orders.execute("DELETE FROM orders WHERE id = 2")
        assert rows(one.until(3)) == [row(3, "c"), row(1, "A"), ({"id": 2}, None)]


@pytest.mark.parametrize("output", ["row", "envelope"])
@pytest.mark.parametrize("action", ["r", "c"], ids=["snapshot", "changes"])
def test_rows_come_as_columns_where_their_types_allow(
    life: NewSourceLife, orders: Connection, output: str, action: str
) -> None:
    orders.execute("ALTER TABLE orders ADD ok boolean, ADD part float8")
    config = {"output.format": output, "slot.drop.on.stop": "true"}
    found: list[list[SourceRecord]] = []
    for kind in (SourceBatch, list):
        if action == "r":
            insert_two(orders)
        with life(config) as one:
            if action == "c":
                assert one.quiet(1) == []
                insert_two(orders)
            records: list[SourceRecord] = []
            while len(records) < 2:
                # The server may send a transaction in parts.
                if polled := one.task.poll():
                    assert isinstance(polled, kind)
                    records += polled.records() if isinstance(polled, SourceBatch) else polled
            assert "lsn" in records[-1].offset
            found.append(records)
            assert one.quiet(1) == []
        # No column of Arrow's holds dates as Connect has them.
        orders.execute("DELETE FROM orders")
        orders.execute("ALTER TABLE orders ADD IF NOT EXISTS day date")
    for as_column, as_record in zip(*found, strict=True):
        value, other = as_column.value, as_record.value
        if output == "envelope":
            told = (action, None)
            assert (value["op"], value["before"]) == (other["op"], other["before"]) == told
            assert value["source"].keys() == other["source"].keys()
            assert as_column.timestamp_ms == value["ts_ms"]
            value, other = value["after"], other["after"]
        assert {**value, "day": None} == other
        assert as_column.key == as_record.key
        assert as_column.key_schema == as_record.key_schema
    assert [record.key for record in found[0]] == [{"id": 1}, {"id": 2}]


def insert_two(orders: Connection) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a', true, 0.5), (2, NULL, NULL, NULL)")


def test_new_rows_that_others_follow_keep_their_places(
    life: NewSourceLife, orders: Connection
) -> None:
    """A poll that is no column is records, each at the place that it had as one."""
    with life() as one:
        assert one.quiet(1) == []
        with orders.transaction():
            orders.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
            orders.execute("UPDATE orders SET name = 'A' WHERE id = 1")
        found = one.until(3)
    assert rows(found) == [row(1, "a"), row(2, "b"), row(1, "A")]
    assert [record.offset["record"] for record in found] == [1, 2, 3]


def test_no_change_is_lost_between_snapshot_and_stream(
    life: NewSourceLife, orders: Connection, dsn: str
) -> None:
    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number in range(300):
                connection.execute("INSERT INTO orders VALUES (%s, 'x')", [number])

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.05)
    with life() as one:
        found = [key["id"] for key, _ in rows(one.until(300))]
    writer.join()
    assert sorted(found) == list(range(300))


def test_row_that_gets_another_key_is_deleted_under_the_old_one(
    life: NewSourceLife, orders: Connection
) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'a')")
    with life() as one:
        one.until(1)
        orders.execute("UPDATE orders SET id = 9")
        assert rows(one.until(2)) == [({"id": 1}, None), row(9, "a")]


def test_transactions_that_are_rolled_back_leave_no_trace(
    life: NewSourceLife, orders: Connection
) -> None:
    with life() as one:
        one.quiet(1)
        with orders.transaction(force_rollback=True):
            orders.execute("INSERT INTO orders VALUES (1, 'a')")
        orders.execute("INSERT INTO orders VALUES (2, 'b')")
        assert rows(one.until(1)) == [row(2, "b")]


def test_new_and_dropped_columns_show_at_once(life: NewSourceLife, orders: Connection) -> None:
    with life() as one:
        one.quiet(1)
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        orders.execute("ALTER TABLE orders ADD COLUMN tags text[]")
        orders.execute("INSERT INTO orders VALUES (2, 'b', '{x,y}')")
        orders.execute("ALTER TABLE orders DROP COLUMN name")
        orders.execute("INSERT INTO orders VALUES (3, '{}')")
        values = [record.value for record in one.until(3)]
    assert values == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b", "tags": ["x", "y"]},
        {"id": 3, "tags": []},
    ]


def test_types_are_those_of_queries(life: NewSourceLife, db: Connection) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, n numeric(8,2), at timestamptz, plain timestamp,"
        " doc jsonb, number uuid, raw bytea, m mood, ms mood[], f boolean, d interval)"
    )
    insert = (
        "INSERT INTO orders SELECT %s, 2.5, '2024-01-01+00', '2024-01-01', '{\"a\": 1}',"
        " '11111111-2222-3333-4444-555555555555', '\\x00ff', 'sad', '{happy}', true, '1 day'"
    )
    db.execute(insert, [1])
    with life() as one:
        (first,) = one.until(1)
        db.execute(insert, [2])
        (second,) = one.until(1)
    assert first.value | {"id": 2} == second.value
    assert first.value_schema == second.value_schema
    assert second.value["raw"] == b"\x00\xff"


class TestExactlyOnce:
    """A restart goes on behind the last committed record."""

    def test_in_the_middle_of_a_transaction(self, life: NewSourceLife, orders: Connection) -> None:
        with life({"batch.max.rows": "4"}) as one:
            one.quiet(1)
            orders.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 10) n")
            found = one.until(4)
            one.commit()
            assert one.until(2), "read, and not committed"
        with life() as two:
            found += two.until(10 - len(found))
            assert two.quiet(2) == []
        assert [key["id"] for key, _ in rows(found)] == list(range(1, 11))

    def test_after_changes_while_nobody_read(self, life: NewSourceLife, orders: Connection) -> None:
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        with life() as one:
            one.until(1)
            one.commit()
        orders.execute("INSERT INTO orders VALUES (2, 'b')")
        with life() as two:
            assert rows(two.until(1)) == [row(2, "b")]
            two.commit()
        with life() as three:
            assert three.quiet(2) == []

    def test_in_the_middle_of_a_snapshot_takes_a_new_one(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        orders.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 10) n")
        with life({"batch.max.rows": "4"}) as one:
            assert len(one.poll()) == 4
            one.commit()
        orders.execute("DELETE FROM orders WHERE id > 8")
        with life() as two:
            assert len(two.until(8)) == 8
            assert two.quiet(1) == []

    def test_after_the_stream_broke(self, life: NewSourceLife, orders: Connection) -> None:
        with life({"batch.max.rows": "4"}) as one:
            one.quiet(1)
            orders.execute("INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 10) n")
            found = one.until(4)
            orders.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'headrace source'"
            )
            found += one.until(10 - len(found))
        assert [key["id"] for key, _ in rows(found)] == list(range(1, 11))

    def test_server_keeps_what_is_not_committed_and_forgets_the_rest(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        with life() as one:
            one.quiet(1)
            orders.execute("INSERT INTO orders VALUES (1, 'a')")
            # Until then the server may be told of whatever other databases have written.
            inserted = current(orders)
            one.until(1)
            orders.execute("CREATE TABLE others (id int)")
            one.quiet(3)
            assert confirmed(orders) < inserted, "forgot what was not committed"
            one.commit()
            end = current(orders)
            deadline = time.monotonic() + 10
            while confirmed(orders) < end:
                assert time.monotonic() < deadline, "the server was never told"
                one.poll()


def confirmed(db: Connection) -> int:
    return number(
        db, "confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    )


def current(db: Connection) -> int:
    return number(db, "pg_current_wal_lsn()")


def number(db: Connection, what: str) -> int:
    found = db.execute(
        f"SELECT (({what.partition(' ')[0]}) - '0/0'::pg_lsn)::bigint {what.partition(' ')[2]}"
    ).fetchone()
    assert found is not None
    assert isinstance(found[0], int)
    return found[0]


class TestEnvelope:
    """Before and after, as Debezium has it."""

    @pytest.fixture
    def life(self, life: NewSourceLife) -> NewSourceLife:
        return lambda config=None: life({"output.format": "envelope"} | (config or {}))

    def test_says_what_happened(self, life: NewSourceLife, orders: Connection) -> None:
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        with life() as one:
            found = one.until(1)
            orders.execute("UPDATE orders SET name = 'b'")
            orders.execute("DELETE FROM orders")
            orders.execute("TRUNCATE orders")
            found += one.until(4)
        events = [
            found_one.value and tuple(found_one.value[name] for name in ("op", "before", "after"))
            for found_one in found
        ]
        assert events == [
            ("r", None, {"id": 1, "name": "a"}),
            ("u", None, {"id": 1, "name": "b"}),
            ("d", {"id": 1, "name": None}, None),
            None,
            ("t", None, None),
        ]
        source = found[1].value["source"]
        assert (source["schema"], source["table"], source["snapshot"]) == (
            "public",
            "orders",
            False,
        )
        assert found[1].timestamp_ms == found[1].value["ts_ms"]

    def test_holds_the_whole_row_before_where_the_server_sends_it(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        orders.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        with life({"tombstones.on.delete": "false"}) as one:
            one.quiet(1)
            orders.execute("INSERT INTO orders VALUES (1, 'a')")
            orders.execute("UPDATE orders SET name = 'b'")
            orders.execute("DELETE FROM orders")
            found = one.until(3)
            assert one.quiet(1) == []
        assert [record.value["before"] for record in found] == [
            None,
            {"id": 1, "name": "a"},
            {"id": 1, "name": "b"},
        ]
        assert [record.key for record in found] == [{"id": 1}] * 3


class TestLargeValues:
    """The server does not send a large value that an update left alone."""

    @pytest.fixture
    def large(self, db: Connection) -> Connection:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, name text, large text)")
        db.execute("ALTER TABLE orders ALTER COLUMN large SET STORAGE EXTERNAL")
        db.execute("INSERT INTO orders VALUES (1, 'a', repeat('x', 9000))")
        return db

    @pytest.mark.parametrize(("how", "length"), [("read", 9000), ("null", None)])
    def test_is_read_or_left_out(
        self, life: NewSourceLife, large: Connection, how: str, length: int | None
    ) -> None:
        with life({"unchanged.values": how}) as one:
            one.until(1)
            large.execute("UPDATE orders SET name = 'b'")
            (record,) = one.until(1)
        assert record.value["name"] == "b"
        found = record.value["large"]
        assert (None if found is None else len(found)) == length

    def test_fails_where_it_must_be_exact(self, life: NewSourceLife, large: Connection) -> None:
        with life({"unchanged.values": "fail"}) as one:
            one.until(1)
            large.execute("UPDATE orders SET name = 'b'")
            with pytest.raises(SchemaError, match=r"(?s)left large alone.*REPLICA IDENTITY FULL"):
                one.until(1)

    def test_comes_with_the_row_before(self, life: NewSourceLife, large: Connection) -> None:
        large.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        with life({"unchanged.values": "fail"}) as one:
            one.until(1)
            large.execute("UPDATE orders SET name = 'b'")
            (record,) = one.until(1)
        assert len(record.value["large"]) == 9000


class TestSlots:
    """What the server keeps."""

    def test_slot_is_dropped_where_that_is_wanted(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        with life({"slot.drop.on.stop": "true"}) as one:
            one.quiet(1)
            assert slots(orders) == 1
        assert slots(orders) == 0

    def test_slot_that_is_gone_is_not_made_anew(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        with life({"slot.drop.on.stop": "true"}) as one:
            one.until(1)
            one.commit()
        with pytest.raises(StateError, match=r"(?s)is gone.*reset its offsets"), life():
            pass

    def test_position_of_another_server_is_refused(
        self, life: NewSourceLife, orders: Connection, committed: KitOffsets
    ) -> None:
        one = life()
        position = {"lsn": "FF/0", "record": 1}
        partition = {"slot": one.config["slot.name"]}
        committed.put(partition, position)
        with pytest.raises(StateError, match="restored from a backup"), one:
            pass

    def test_existing_rows_are_left_out_where_that_is_wanted(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        orders.execute("INSERT INTO orders VALUES (1, 'a')")
        with life({"snapshot.mode": "never"}) as one:
            one.quiet(1)
            orders.execute("INSERT INTO orders VALUES (2, 'b')")
            assert rows(one.until(1)) == [row(2, "b")]

    def test_publication_gets_missing_tables(self, life: NewSourceLife, orders: Connection) -> None:
        orders.execute("CREATE TABLE others (id int PRIMARY KEY)")
        orders.execute("CREATE PUBLICATION mine FOR TABLE others")
        with life({"publication.name": "mine"}) as one:
            one.quiet(1)
            orders.execute("INSERT INTO others VALUES (1)")
            orders.execute("INSERT INTO orders VALUES (1, 'a')")
            assert rows(one.until(1)) == [row(1, "a")]

    def test_publication_is_left_alone_where_that_is_wanted(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        config = {"publication.autocreate": "false"}
        with pytest.raises(ConnectorConfigError, match=r"lacks public\.orders"), life(config):
            pass

    def test_slot_of_a_reader_that_hangs_is_taken_over(
        self, life: NewSourceLife, orders: Connection
    ) -> None:
        with life({"snapshot.mode": "never"}) as one:
            one.quiet(1)
            with life({"snapshot.mode": "never"}) as two:
                orders.execute("INSERT INTO orders VALUES (1, 'a')")
                assert rows(two.until(1)) == [row(1, "a")]

    def test_default_name_is_one_that_the_server_takes(self) -> None:
        assert default_name("Bestellungen Köln") == "headrace_bestellungen_k_ln"
        assert len(default_name("x" * 100)) == 63


def slots(db: Connection) -> int:
    found = db.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone()
    assert found is not None
    return int(str(found[0]))


def test_partitions_count_as_their_table(life: NewSourceLife, db: Connection) -> None:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)")
    db.execute("INSERT INTO orders VALUES (1, 'a')")
    with life() as one:
        assert rows(one.until(1)) == [row(1, "a")]
        db.execute("INSERT INTO orders VALUES (2, 'b')")
        (record,) = one.until(1)
    assert (record.topic, rows([record])) == ("orders", [row(2, "b")])


def test_rows_without_a_key_can_only_be_added(life: NewSourceLife, db: Connection) -> None:
    db.execute("CREATE TABLE orders (name text)")
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    with life() as one:
        one.quiet(1)
        db.execute("INSERT INTO orders VALUES ('a')")
        assert rows(one.until(1)) == [(None, {"name": "a"})]
        db.execute("DELETE FROM orders")
        with pytest.raises(SchemaError, match=r"(?s)no primary key.*output.format=envelope"):
            one.until(1)
