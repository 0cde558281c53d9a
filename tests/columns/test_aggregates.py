"""Aggregates over columns agree with a model that looks at every record in Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    StreamBuilder,
    Topology,
    TopologyError,
    TopologyTestDriver,
    avg,
    collect,
    count,
    count_distinct,
    max_,
    min_,
    serdes,
    sum_,
    top,
)
from headrace.columns import col, explode
from headrace.columns.cells import CellsSerde
from headrace.errors import DeserializationError, UserCodeError


@dataclass
class Order:
    city: str | None
    shop: int
    price: int | None
    weight: float = 0.5
    tax: Decimal = Decimal("0.10")


ORDERS = serdes.json(Order)
ORDER_STRATEGY = st.builds(
    Order,
    city=st.sampled_from(["rome", "oslo", None, "", "ü"]),
    shop=st.integers(-2, 2),
    price=st.one_of(
        st.none(), st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**66)
    ),
    tax=st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-10, max_value=10),
)


def topology() -> Topology:
    builder = StreamBuilder("job")
    groups = builder.source("orders", ORDERS).group_by("city", "shop")
    groups.agg(
        count(),
        sum_("price"),
        min_("price"),
        max_("price"),
        known=count("price"),
        mean=avg("price"),
        taxes=sum_("tax"),
        last=max_("tax"),
        best=top(2, "price"),
        different=count_distinct("price"),
    ).sink("out", serdes.plain)
    return builder.build()


TOPOLOGY = topology()


def send_together(
    driver: TopologyTestDriver, topic: str, serde: serdes.Serde[Any], values: list[Any]
) -> None:
    with driver.batch():
        for value in values:
            driver.input(topic, serde).send(value)


def model(orders: list[Order]) -> dict[Any, dict[str, Any]]:
    groups: dict[Any, list[Order]] = defaultdict(list)
    for order in orders:
        groups[order.city, order.shop].append(order)
    return {key: _row(key, found) for key, found in groups.items()}


def _row(key: tuple[str | None, int], orders: list[Order]) -> dict[str, Any]:
    prices = [order.price for order in orders if order.price is not None]
    whole = sum(prices) if prices else None
    taxes = Decimal(0)
    for order in orders:
        taxes += order.tax
    return {
        "city": key[0],
        "shop": key[1],
        "count": len(orders),
        "sum_price": whole,
        "min_price": min(prices, default=None),
        "max_price": max(prices, default=None),
        "known": len(prices),
        "mean": None if whole is None else whole / len(prices),
        "taxes": taxes,
        "last": max(order.tax for order in orders),
        "best": sorted(prices, reverse=True)[:2],
        "different": len(set(prices)),
    }


@settings(deadline=None, max_examples=60)
@given(batches=st.lists(st.lists(ORDER_STRATEGY, min_size=1, max_size=12), max_size=4))
def test_groups_agree_with_the_model_however_batches_are_cut(batches: list[list[Order]]) -> None:
    with TopologyTestDriver(TOPOLOGY) as driver:
        for orders in batches:
            with driver.batch():
                for order in orders:
                    driver.input("orders", ORDERS).send(order)
        out = driver.output("out", serdes.with_key(serdes.plain, of=object)).read_all()
    latest = {record.key: record.value for record in out}
    assert latest == model([order for orders in batches for order in orders])


def test_sums_beyond_64_bits_stay_exact_in_state() -> None:
    """Number 15 of the known defects: an int that overflows."""
    with TopologyTestDriver(TOPOLOGY) as driver:
        for _ in range(3):
            with driver.batch():
                for _ in range(3):
                    driver.input("orders", ORDERS).send(Order("a", 1, 2**63 - 1))
        (*_, last) = driver.output("out", serdes.plain).read_all()
    assert last.value["sum_price"] == 9 * (2**63 - 1)
    assert last.value["mean"] == float(2**63 - 1)


def test_mean_merges_over_batches() -> None:
    """Number 14 of the known defects: a mean of means is no mean."""
    with TopologyTestDriver(TOPOLOGY) as driver:
        for prices in ([1], [2, 9]):
            with driver.batch():
                for price in prices:
                    driver.input("orders", ORDERS).send(Order("a", 1, price))
        (*_, last) = driver.output("out", serdes.plain).read_all()
    assert last.value["mean"] == 4.0


def test_count_of_a_column_leaves_nulls_out() -> None:
    """Number 21 of the known defects: count(selector) counted everything."""
    with TopologyTestDriver(TOPOLOGY) as driver:
        driver.input("orders", ORDERS).send(Order("a", 1, None))
        (found,) = driver.output("out", serdes.plain).read_all()
    assert (found.value["count"], found.value["known"]) == (1, 0)


def test_words_are_counted_without_looking_at_one() -> None:
    builder = StreamBuilder("job")
    words = builder.source("lines", serdes.string).select(
        word=explode(col("value").lower().split())
    )
    words.group_by("word").agg(count()).sink("counts", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for line in ("To be or", "", "  not to be "):
                driver.input("lines", serdes.string).send(line)
        found = driver.output("counts", serdes.with_key(serdes.json)).read_all()
    assert {record.key: record.value["count"] for record in found} == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
    }


def test_aggregate_after_another_key_is_shuffled_again() -> None:
    builder = StreamBuilder("job")
    first = builder.source("orders", ORDERS).group_by("city", "shop").agg(count())
    second = first.to_stream().where(col("count") > 0).group_by("city").agg(sum_("count"))
    second.sink("out", serdes.json)
    topology = builder.build()
    assert len(topology.plan.stages) == 3


@settings(deadline=None, max_examples=40)
@given(batches=st.lists(st.lists(ORDER_STRATEGY, min_size=1, max_size=8), max_size=4))
def test_aggregates_of_aggregates_take_old_values_back(batches: list[list[Order]]) -> None:
    builder = StreamBuilder("job")
    first = (
        builder.source("orders", ORDERS).group_by("city", "shop").agg(n=count(), p=sum_("price"))
    )
    again = first.to_stream().where(col("p") > 0).group_by("shop")
    again.agg(cities=count(), n=sum_("n"), p=sum_("p"), mean=avg("p")).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        for orders in batches:
            send_together(driver, "orders", ORDERS, orders)
        # An empty body takes the group away.
        reader = serdes.with_key(
            lambda body: serdes.plain.deserialize(body) if body else None, of=object
        )
        latest = {record.key: record.value for record in driver.output("out", reader).read_all()}
    groups = model([order for orders in batches for order in orders])
    live = [row for row in groups.values() if row["sum_price"] is not None and row["sum_price"] > 0]
    expected = {
        shop: {
            "shop": shop,
            "cities": len(rows),
            "n": sum(row["count"] for row in rows),
            "p": sum(row["sum_price"] for row in rows),
            "mean": sum(row["sum_price"] for row in rows) / len(rows),
        }
        for shop in {row["shop"] for row in live}
        if (rows := [row for row in live if row["shop"] == shop])
    }
    assert {key: row for key, row in latest.items() if row is not None} == expected


def test_least_of_updates_is_refused() -> None:
    first = StreamBuilder("job").source("orders", ORDERS).group_by("city").agg(count())
    with pytest.raises(TopologyError, match="needs every value"):
        first.to_stream().group_by("count").agg(min_("city"))


def test_functions_see_the_objects_that_the_serde_makes() -> None:
    builder = StreamBuilder("job")
    dear = builder.source("orders", ORDERS).where(col("price") > 3)
    dear.where(lambda order: isinstance(order, Order)).sink("dear", ORDERS)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for price in (1, 9, None, 4):
                driver.input("orders", ORDERS).send(Order("a", 1, price))
        found = driver.output("dear", ORDERS).read_all()
    assert [record.value for record in found] == [Order("a", 1, 9), Order("a", 1, 4)]


def test_columns_of_what_a_function_makes() -> None:
    def halved(order: Order) -> Order:
        return Order(order.city, order.shop, (order.price or 0) // 2)

    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS).map_values(halved, serde=ORDERS)
    orders.select("shop", twice=col("price") * 2).sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("orders", ORDERS).send(Order("a", 1, 9))
        (found,) = driver.output("out", serdes.json).read_all()
    assert found.value == {"shop": 1, "twice": 8}


def test_message_that_cannot_be_read_is_named() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS)
    orders.select("shop").sink("out", serdes.json)
    driver = TopologyTestDriver(builder.build())
    rows = [{"city": "a", "shop": 1, "price": 1}, {"city": "a", "shop": "x", "price": 1}]
    with pytest.raises(DeserializationError, match="offset 1"):
        send_together(driver, "orders", serdes.json, rows)


def test_record_that_cannot_be_computed_is_named() -> None:
    builder = StreamBuilder("job")
    builder.source("lines", serdes.string).select(n=col("value").cast("int")).sink(
        "out", serdes.json
    )
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserCodeError, match=r"offset 2.*'seven'") as caught:
        send_together(driver, "lines", serdes.string, ["1", "2", "seven", "4"])
    assert "select-lines" in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda orders: orders.select("prize"), "did you mean 'price'"),
        (lambda orders: orders.select(x=col("price") + "a"), "no kernel"),
        (lambda orders: orders.select("shop", shop=col("price")), "two columns the name 'shop'"),
        (lambda orders: orders.select(col("price") * 2), "needs a name"),
        (lambda orders: orders.select(), "names no column"),
        (lambda orders: orders.where(col("price")), "gives true or false"),
        (lambda orders: orders.where("price"), "where at .* needs a function or an expression"),
        (lambda orders: orders.group_by("city").agg(sum_("city")), "no kernel"),
        (lambda orders: orders.group_by("city").agg(count().named("city")), "name 'city'"),
        (lambda orders: orders.map_values(lambda o: o).select("x"), "values of type unknown"),
        (lambda orders: orders.group_by("city").agg(collect()), r"no collect(.|\n)*key_by\(...\)"),
        (lambda orders: orders.group_by("city").agg(top(3)), "top of groups takes a column"),
        (lambda orders: orders.group_by("city").agg(top(0, "price")), "cannot keep 0 values"),
        (lambda orders: orders.group_by("city").agg(sum_(len)), r"a column, not <built-in"),
        (lambda orders: orders.group_by("city").agg(sum_()), "takes a column, not None"),
        (lambda orders: orders.group_by("city").agg("price"), "takes aggregates, not 'price'"),
    ],
)
def test_what_cannot_work_is_refused_when_built(build: Any, message: str) -> None:
    orders = StreamBuilder("job").source("orders", ORDERS)
    with pytest.raises(TopologyError, match=message):
        build(orders)


@pytest.mark.parametrize("packs", [True, False])
@given(
    cells=st.lists(
        st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.booleans()),
        max_size=20,
    )
)
def test_cells_read_back_as_they_were(cells: list[Any], packs: bool) -> None:
    serde = CellsSerde(packs=packs)
    back = serde.deserialize(serde.serialize(tuple(cells)))
    assert back == tuple(cells)
    assert list(map(type, back)) == list(map(type, cells))


@pytest.mark.parametrize("packs", [True, False])
def test_many_cells_are_written_as_each_is(packs: bool) -> None:
    serde = CellsSerde(packs=packs)
    for rows in ([(1, 2.5), (None, "a")], [(1,), (2**70,)], []):
        data = serde.serialize_many(rows)
        assert data.to_pylist() == list(map(serde.serialize, rows))
        assert serde.deserialize_many(data) == rows
