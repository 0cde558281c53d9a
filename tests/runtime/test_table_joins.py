"""Tables: deletes, joins with streams, with each other, and by foreign keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import StreamBuilder, serdes
from headrace.errors import TopologyError
from headrace.runtime import TopologyTestDriver
from headrace.streams import Stream, Table
from headrace.topology.windows import tumbling

SECOND = timedelta(seconds=1)

Change = tuple[str, Any, Any]
"""Topic, key and value; None deletes."""


def run(builder: StreamBuilder, batches: list[list[Change]], partitions: int = 3) -> list[Any]:
    """Give key and value of everything that topic ``out`` gets."""
    with TopologyTestDriver(builder.build(), partitions=partitions) as driver:
        return fed(driver, batches)


def fed(driver: TopologyTestDriver, batches: list[list[Change]]) -> list[Any]:
    for batch in batches:
        with driver.batch():
            for topic, key, value in batch:
                body = b"" if value is None else serdes.json.serialize(value)
                driver.input(topic, serdes.json).send_bytes(body, key=key)
    records = driver.output("out", serdes.optional(serdes.json)).read_all()
    return [(record.key, record.value) for record in records]


def singly(changes: list[Change]) -> list[list[Change]]:
    return [[change] for change in changes]


def out(result: Stream[Any, Any] | Table[Any, Any]) -> None:
    result.sink("out", serdes.optional(serdes.json))


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


LOOKED_UP: dict[str, Any] = {
    "table": lambda b, **o: b.table("rows", serdes.with_key(serdes.json), **o),
    "global table": lambda b, **o: b.global_table("rows", serdes.with_key(serdes.json), **o),
    "kept stream": lambda b, **o: b.source("rows", serdes.with_key(serdes.json), **o).to_table(),
}


@pytest.mark.parametrize("table", LOOKED_UP)
@pytest.mark.parametrize("row", [None, 0, 15])
@pytest.mark.parametrize(
    ("options", "wait"), [({}, 10), ({"idle_timeout": 3 * SECOND}, 3), ({"idle_timeout": None}, 0)]
)
def test_a_quiet_table_holds_windows_back_for_its_idle_timeout(
    table: str, row: int | None, options: dict[str, Any], wait: int
) -> None:
    builder = StreamBuilder("quiet")
    clicks: Any = builder.source(
        "clicks", serdes.with_key(serdes.json), allowed_lateness=0 * SECOND
    )
    more = {"left_key": lambda click: "k"} if table == "global table" else {}
    joined = clicks.left_join(LOOKED_UP[table](builder, **options), pair, **more)
    windows = joined.group_by_key().window(tumbling(10 * SECOND)).count()
    windows.sink("counts", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        start = driver.now
        if row is not None:
            driver.input("rows", serdes.json).send("row", key="k", time=start + row * SECOND)
        for second in (1, 2, 25):
            # The second window ends by what the stream says, and its last one by nothing.
            driver.input("clicks", serdes.json).send(0, key="k", time=start + second * SECOND)
        counts = driver.output("counts", serdes.json)
        early = int(row == 15)
        assert len(counts) == early
        driver.advance_wall_clock((wait or 100) * SECOND - timedelta(milliseconds=1))
        assert len(counts) == early
        driver.advance_wall_clock(timedelta(milliseconds=1))
        # The stream itself is quiet by then, too, or says nothing more.
        assert [r.value for r in counts.read_all()] == ([2] if wait or early else [])


def test_a_table_passes_on_what_changes() -> None:
    builder = StreamBuilder("tables")
    out(builder.table("people", serdes.with_key(serdes.json, of=object)))
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        changes = [("people", "a", 1), ("people", "b", None), ("people", "a", None)]
        assert fed(driver, singly([*changes, ("people", "a", None)])) == [("a", 1), ("a", None)]
        assert len(driver.state("table-people")) == 0
        fed(driver, [[("people", None, 1)]])
        assert driver.counters["null_keys"] == 1


def test_a_stream_becomes_a_table_and_rows_are_mapped_and_filtered() -> None:
    builder = StreamBuilder("tables")
    stream = builder.source("in", serdes.json).key_by(lambda value: value["id"])
    table = stream.map_values(lambda value: value["n"]).to_table(name="numbers")
    out(table.map_values(lambda n: n * 10).where(lambda n: n < 50))
    values = [{"id": "a", "n": 1}, {"id": "a", "n": 7}, {"id": "a", "n": None}]
    with TopologyTestDriver(builder.build()) as driver:
        batches = singly([("in", None, value) for value in values])
        assert fed(driver, batches) == [("a", 10), ("a", None), ("a", None)]


@pytest.mark.parametrize("size", [1, 9])
def test_a_record_meets_the_row_of_its_moment(size: int) -> None:
    changes = [
        ("clicks", "a", 1),
        ("people", "a", "Ada"),
        ("clicks", "a", 2),
        ("people", "a", "Anna"),
        ("clicks", "a", 3),
        ("people", "a", None),
        ("clicks", "a", 4),
        ("clicks", None, 5),
    ]
    batches = [changes[at : at + size] for at in range(0, len(changes), size)]
    for kind, expected in [
        ("join", [("a", [2, "Ada"]), ("a", [3, "Anna"])]),
        (
            "left_join",
            [
                ("a", [1, None]),
                ("a", [2, "Ada"]),
                ("a", [3, "Anna"]),
                ("a", [4, None]),
                (None, [5, None]),
            ],
        ),
    ]:
        builder = StreamBuilder("lookups")
        clicks = builder.source("clicks", serdes.with_key(serdes.json, of=object))
        out(getattr(clicks, kind)(builder.table("people", serdes.json), pair))
        assert run(builder, batches, partitions=1) == expected


def test_a_stream_looks_up_by_the_key_that_a_function_gives() -> None:
    builder = StreamBuilder("lookups")
    people = builder.table("people", serdes.json)
    clicks = builder.source("clicks", serdes.json)
    joined = clicks.join(people).left_key(lambda click: click["user"])
    out(joined.apply(lambda key, click, person: [key, click["page"], person]))
    changes: list[Change] = [("people", "u", "Uma"), ("clicks", None, {"user": "u", "page": 9})]
    assert run(builder, singly(changes)) == [("u", ["u", 9, "Uma"])]


@pytest.mark.parametrize("size", [1, 2])
def test_a_counted_table_is_joined_as_it_is_before_the_record(size: int) -> None:
    builder = StreamBuilder("lookups")
    clicks = builder.source("clicks", serdes.with_key(serdes.json))
    out(clicks.join(clicks.group_by_key().count(emit="each"), pair))
    changes: list[Change] = [("clicks", "a", 7), ("clicks", "a", 8)]
    assert run(builder, [changes] if size == 2 else singly(changes)) == [("a", [8, 1])]


@pytest.mark.parametrize("partitions", [1, 4])
def test_every_partition_has_all_of_a_global_table(partitions: int) -> None:
    builder = StreamBuilder("global")
    countries = builder.global_table("countries", serdes.json)
    orders = builder.source("orders", serdes.with_key(serdes.json))
    joined = orders.left_join(countries, pair, left_key=lambda order: order["to"])
    out(joined)
    keys = [f"order-{number}" for number in range(12)]
    changes: list[Change] = [
        ("countries", "de", "Germany"),
        *(("orders", key, {"to": "de"}) for key in keys),
        ("countries", "de", None),
        ("orders", "last", {"to": "de"}),
    ]
    found = run(builder, singly(changes), partitions)
    assert sorted(found[:-1]) == sorted((key, [{"to": "de"}, "Germany"]) for key in keys)
    assert found[-1] == ("last", [{"to": "de"}, None])


def test_a_record_looks_up_its_own_key_in_a_global_table() -> None:
    builder = StreamBuilder("global")
    countries = builder.global_table("countries", serdes.json)
    out(builder.source("in", serdes.with_key(serdes.json)).join(countries).apply(pair))
    changes = [("countries", "de", "Germany"), ("in", "de", 1), ("in", "fr", 2)]
    assert run(builder, singly(changes)) == [("de", [1, "Germany"])]


def test_selector_of_a_global_table_may_take_the_key() -> None:
    builder = StreamBuilder("global")
    countries = builder.global_table("countries", serdes.json)
    source = builder.source("in", serdes.with_key(serdes.json))
    out(source.join(countries).left_key(lambda key, value: key + value).apply(pair))
    changes = [("countries", "de", "Germany"), ("in", "d", "e")]
    assert run(builder, singly(changes)) == [("d", ["e", "Germany"])]


TABLES = {
    "join": lambda left, right: None if None in (left, right) else [left, right],
    "left_join": lambda left, right: None if left is None else [left, right],
    "outer_join": lambda left, right: None if left is right is None else [left, right],
}

changes_of_two_tables = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 99),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(changes_of_two_tables, st.sampled_from(sorted(TABLES)), st.integers(1, 30))
def test_joined_tables_follow_every_change(changes: list[Change], kind: str, size: int) -> None:
    builder = StreamBuilder("tables")
    left, right = builder.table("left", serdes.json), builder.table("right", serdes.json)
    out(getattr(left, kind)(right, pair))
    expected: list[Any] = []
    state: dict[Any, Any] = {}
    for topic, key, value in changes:
        both = state.get(("left", key)), state.get(("right", key))
        was = TABLES[kind](*both)
        known = state.get((topic, key)) is not None
        state[topic, key] = value
        now = TABLES[kind](state.get(("left", key)), state.get(("right", key)))
        if (value is not None or known) and (now is not None or was is not None):
            expected.append((key, now))
    batches = [changes[at : at + size] for at in range(0, len(changes), size)]
    assert run(builder, batches, partitions=1) == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("orders"),
                st.sampled_from(["o1", "o2", "o3"]),
                st.none() | st.sampled_from(["p1", "p2", "p"]).map(lambda p: {"of": p}),
            ),
            st.tuples(
                st.just("people"),
                st.sampled_from(["p1", "p2", "p"]),
                st.none() | st.integers(0, 99),
            ),
        ),
        max_size=25,
    ),
    st.sampled_from(["join", "left_join"]),
    st.integers(1, 30),
)
def test_foreign_keys_follow_every_change_of_both_tables(
    changes: list[Change], kind: str, size: int
) -> None:
    builder = StreamBuilder("foreign")
    orders, people = builder.table("orders", serdes.json), builder.table("people", serdes.json)
    out(getattr(orders, kind)(people, pair, foreign_key=lambda order: order["of"]))
    rows: dict[str, dict[str, Any]] = {"orders": {}, "people": {}}
    for topic, key, value in changes:
        rows[topic][key] = value
    expected = {}
    for key, order in rows["orders"].items():
        person = None if order is None else rows["people"].get(order["of"])
        if order is not None and (person is not None or kind == "left_join"):
            expected[key] = [order, person]
    batches = [changes[at : at + size] for at in range(0, len(changes), size)]
    with TopologyTestDriver(builder.build(), partitions=3) as driver:
        found = dict(fed(driver, batches))
        assert {key: value for key, value in found.items() if value is not None} == expected
        kept = "table-orders-people"
        assert len(driver.state(kept)) == len(expected)
        present = sum(order is not None for order in rows["orders"].values())
        assert len(driver.state("foreign_key-orders-people")) == present


def test_defect_20_a_replay_never_brings_a_deleted_value_back() -> None:
    builder = StreamBuilder("replay")
    people = builder.table("people", serdes.json)
    out(builder.source("clicks", serdes.with_key(serdes.json)).left_join(people, pair))
    topology = builder.build()
    with TopologyTestDriver(topology) as driver:
        fed(driver, [[("people", "a", "Ada")], [("people", "a", None)]])
        assert fed(driver, [[("clicks", "a", 1)]]) == [("a", [1, None])]
        assert len(driver.state("table-people")) == 0
        assert len(driver.state("join-clicks-people")) == 0


def test_an_empty_text_is_a_value_in_a_table() -> None:
    builder = StreamBuilder("texts")
    names = builder.source("in", serdes.with_key(serdes.json)).map_values(str, serde=serdes.string)
    table = names.map_values(lambda text: text.strip(), serde=serdes.string).to_table()
    out(table.left_join(table, pair))
    assert run(builder, [[("in", "a", " ")]])[-1] == ("a", ["", ""])


def test_what_cannot_be_joined_is_refused_when_it_is_built() -> None:
    builder = StreamBuilder("checks")
    numbers = builder.source("numbers", serdes.with_key(serdes.json, of=int))
    words = builder.source("words", serdes.with_key(serdes.json))
    with pytest.raises(TopologyError, match=r"can find no pair: .* type int, .* type str"):
        numbers.join(words, pair)
    with pytest.raises(TopologyError, match="can find no pair"):
        numbers.join(builder.table("people", serdes.json), pair)
    with pytest.raises(TopologyError, match="can find no pair"):
        numbers.join(builder.global_table("countries", serdes.json)).apply(pair)
    with pytest.raises(TopologyError, match=r"has left_key\(\.\.\.\) but no right_key"):
        words.join(words).left_key(len).apply(pair)
    other = StreamBuilder("other").source("words", serdes.with_key(serdes.json))
    with pytest.raises(TopologyError, match="two builders, 'checks' and 'other'"):
        words.join(other, pair)
    with pytest.raises(TopologyError, match="does not accept"):
        words.join(words, lambda one: one)  # type: ignore[arg-type, misc]
    table = builder.table("rows", serdes.json)
    with pytest.raises(TopologyError, match="cannot have right_key, within"):
        words.join(table, pair, within=1, right_key=len)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="have none"):
        builder.source("keyless", serdes.string).to_table()
