"""SQL statements mean what the same expressions mean, and what is not known is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from headrace import StreamBuilder, TopologyError, TopologyTestDriver, serdes


@dataclass
class Order:
    city: str | None
    price: int
    note: str | None = None
    weight: float = 0.5


ORDERS = serdes.json(Order)
DATA = [
    Order("oslo", 3, "a"),
    Order("rome", 1),
    Order("oslo", 9, " B ", 2.5),
    Order(None, 4, "x%"),
    Order("rome", 2, "ab"),
]


def answers(statement: str) -> list[Any]:
    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS)
    builder.sql(statement, orders=orders).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for order in DATA:
                driver.input("orders", ORDERS).send(order)
        return [record.value for record in driver.output("out", serdes.plain).read_all()]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("price * 2 + 1", [7, 3, 19, 9, 5]),
        ("price / 2", [1.5, 0.5, 4.5, 2.0, 1.0]),
        ("price % 3", [0, 1, 0, 1, 2]),
        ("-price", [-3, -1, -9, -4, -2]),
        ("upper(city)", ["OSLO", "ROME", "OSLO", None, "ROME"]),
        ("city || '!'", ["oslo!", "rome!", "oslo!", None, "rome!"]),
        ("concat(city, '-', note)", ["oslo-a", None, "oslo- B ", None, "rome-ab"]),
        ("coalesce(note, city, 'none')", ["a", "rome", " B ", "x%", "ab"]),
        ("length(trim(note))", [1, None, 1, 2, 2]),
        ("substring(city, 2, 2)", ["sl", "om", "sl", None, "om"]),
        ("replace(city, 'o', '0')", ["0sl0", "r0me", "0sl0", None, "r0me"]),
        (
            "case when price > 3 then 'dear' when price > 1 then 'fair' end",
            ["fair", None, "dear", "dear", "fair"],
        ),
        ("case city when 'oslo' then 1 else 0 end", [1, 0, 1, 0, 0]),
        ("cast(weight as bigint)", [0, 0, 2, 0, 0]),
        ("round(weight)", [0.0, 0.0, 2.0, 0.0, 0.0]),
        ("price between 2 and 4", [True, False, False, True, True]),
        ("city is null", [False, False, False, True, False]),
        ("city is not null and not price > 3", [True, True, False, False, True]),
        ("city in ('oslo', 'bern')", [True, False, True, None, False]),
        ("city not in ('oslo', 'bern')", [False, True, False, None, True]),
        ("note like '%b'", [False, None, False, False, True]),
        ("orders.price <> 3", [False, True, True, True, True]),
        ("abs(1 - price)", [2, 0, 8, 3, 1]),
    ],
)
def test_expressions(expression: str, expected: list[Any]) -> None:
    assert [row["x"] for row in answers(f"select {expression} as x from orders")] == expected


def test_where_keeps_values_as_they_are() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS)
    builder.sql("select * from orders where price >= 4", orders=orders).sink("out", ORDERS)
    with TopologyTestDriver(builder.build()) as driver:
        for order in DATA:
            driver.input("orders", ORDERS).send(order)
        found = driver.output("out", ORDERS).read_all()
    assert [record.value for record in found] == [DATA[2], DATA[3]]


def test_groups() -> None:
    rows = answers(
        "select upper(o.city) as town, count(*) as n, sum(price) - min(price) as more, avg(weight),"
        " count(note) notes from orders o where price < 100 group by town having count(*) > 1"
    )
    assert sorted(rows, key=lambda row: str(row["town"])) == [
        {"town": "OSLO", "n": 2, "more": 9, "avg_weight": 1.5, "notes": 2},
        {"town": "ROME", "n": 2, "more": 2, "avg_weight": 0.5, "notes": 1},
    ]


def test_key_is_the_group() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS)
    found = builder.sql("select sum(price) s from orders group by city, price > 3", orders=orders)
    found.sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            for order in DATA:
                driver.input("orders", ORDERS).send(order)
        out = driver.output("out", serdes.with_key(serdes.plain, of=object)).read_all()
    assert {record.key: record.value for record in out} == {
        ("oslo", False): {"s": 3},
        ("rome", False): {"s": 3},
        ("oslo", True): {"s": 9},
        (None, True): {"s": 4},
    }


def test_statements_follow_each_other() -> None:
    builder = StreamBuilder("job")
    lines = builder.source("lines", serdes.string)
    words = builder.sql("select explode(split(lower(value), ' ')) as word from lines", lines=lines)
    counts = builder.sql("select word, count(*) as n from words group by word", words=words)
    counts.sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("lines", serdes.string).send("To be or not to be")
        found = driver.output("out", serdes.with_key(serdes.json)).read_all()
    assert {record.key: record.value["n"] for record in found} == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
    }


def test_literals_of_other_types_are_other_measures() -> None:
    rows = answers("select city, sum(price * 1) a, sum(price * 1.0) b from orders group by city")
    assert {(type(row["a"]), type(row["b"])) for row in rows} == {(int, float)}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("selec x", "one select statement|no SQL"),
        ("select (", "no SQL"),
        ("delete from orders", "one select statement"),
        ("select price from orders union select price from orders", "one select statement"),
        ("select price", "from must name"),
        ("select price from orders order by price", "takes no ORDER"),
        ("select price from orders limit 3", "takes no LIMIT"),
        ("select distinct price from orders", "takes no DISTINCT"),
        ("with a as (select 1) select price from a", "takes no WITH"),
        ("select price from orders join others on true", "takes no JOINS"),
        ("select price from (select price from orders)", "name of one stream"),
        ("select price from db.orders", "name of one stream"),
        ("select price from others", "the streams given are orders"),
        ("select price * 2 from orders", "needs a name"),
        ("select *, price from orders", r"\* stands alone"),
        ("select count(*) from orders", "needs group by"),
        ("select price from orders where count(*) > 1", "not in where"),
        ("select price from orders having price > 1", "having needs group by"),
        ("select price, count(*) from orders group by city", "'price' is neither"),
        ("select city from orders group by city", "needs an aggregate"),
        ("select city, count(*) from orders group by 1", "not their numbers"),
        ("select city, count(*) from orders group by rollup (city)", "does not know Rollup"),
        ("select count(distinct price) as n from orders group by city", "takes no distinct"),
        ("select others.price from orders", "no stream 'others'"),
        ("select uper(city) from orders", "no function 'uper'; did you mean 'upper'?"),
        (
            "select city, count(*) from orders group by city, tumble(t, 1)",
            r"group_by\(...\).window",
        ),
        ("select sin(price) as s from orders", "does not know Sin"),
        ("select cast(price as json) as s from orders", "cast knows"),
        ("select prize from orders", "did you mean 'price'"),
        ("select city + 1 as s from orders", "no kernel"),
        (
            "select row_number() over (partition by city) as n from orders",
            "does not know window functions",
        ),
        ("select current_date as d from orders", "does not know CurrentDate"),
    ],
)
def test_what_streams_cannot_do_is_refused(statement: str, message: str) -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", ORDERS)
    with pytest.raises(TopologyError, match=message):
        builder.sql(statement, orders=orders)
