"""What annotations say of values: how they are written to topics, and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    KeyedStream,
    Processor,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    count,
    serdes,
    tumbling,
)
from headrace.topology import Sink
from headrace.topology.shapes import state_shape

HERE = Path(__file__).name


@dataclass
class Order:
    item: str
    price: int


@dataclass
class Priced:
    item: str
    gross: float


def priced(order: Order) -> Priced:
    return Priced(order.item, order.price * 1.5)


def priced_or_none(order: Order) -> Priced | None:
    return priced(order) if order.price else None


def priced_twice(order: Order) -> Iterator[Priced]:
    yield from (priced(order), priced(order))


def by_item(key: str, order: Order) -> tuple[str, Priced]:
    return key, priced(order)


def by_items(order: Order) -> list[tuple[str, Priced]]:
    return [(order.item, priced(order))]


async def priced_elsewhere(order: Order) -> Priced:
    return priced(order)


def dearest(left: Priced, right: Priced) -> Priced:
    return max(left, right, key=lambda one: one.gross)


def unresolved(order: Order) -> Missing:  # type: ignore[name-defined]  # noqa: F821
    return order


class Pricing:
    def __call__(self, order: Order) -> Priced:
        return priced(order)

    def of(self, order: Order) -> Priced:
        return priced(order)


class Quiet(Processor[str, Order, str, Order]):
    pass


def keyed_orders() -> tuple[StreamBuilder, KeyedStream[str, Order]]:
    builder = StreamBuilder("job")
    return builder, builder.source("orders", Order).key_by(lambda order: order.item)


KNOWN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s, "json_of(Order)"),
    (lambda s: s.where(lambda order: order.price), "json_of(Order)"),
    (lambda s: s.peek(print).repartition(lambda order: order.price), "json_of(Order)"),
    (lambda s: s.branch(dear=lambda order: order.price > 9).rest, "json_of(Order)"),
    (lambda s: s.map_values(priced), "json_of(Priced)"),
    (lambda s: s.map_values(functools.partial(priced)), "json_of(Priced)"),
    (lambda s: s.map_values(Pricing()), "json_of(Priced)"),
    (lambda s: s.map_values(Pricing().of), "json_of(Priced)"),
    (lambda s: s.map_values(priced_or_none), "json_of(Priced)"),
    (lambda s: s.map_async(priced_elsewhere), "json_of(Priced)"),
    (lambda s: s.flat_map_values(priced_twice), "json_of(Priced)"),
    (lambda s: s.map(by_item), "json_of(Priced)"),
    (lambda s: s.flat_map(by_items), "json_of(Priced)"),
    (lambda s: s.map_values(priced).merge(s.map_values(priced)), "json_of(Priced)"),
    (lambda s: s.map_values(priced).reduce(dearest), "json_of(Priced)"),
    (lambda s: s.map_values(priced).to_table().where(bool), "json_of(Priced)"),
    (lambda s: s.to_table().map_values(priced), "json_of(Priced)"),
    (lambda s: s.map_values(priced).collect(), "json_of(list)"),
    (lambda s: s.window(tumbling(timedelta(1))).max(lambda o: o.price), "json_of(Order)"),
    (
        lambda s: s.window(tumbling(timedelta(1))).count().to_stream(with_window=True),
        "json_of(Windowed)",
    ),
    (lambda s: s.count(), "json"),
    (lambda s: s.sum(lambda order: order.price).map_values(str), "string"),
    (lambda s: s.select("item"), "json"),
    (lambda s: s.map_values(lambda order: order.price, serde=serdes.int), "int"),
]
UNKNOWN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.map_values(lambda order: order), "map_values-orders"),
    (lambda s: s.map_values(unresolved), "map_values-orders"),
    (lambda s: s.map_values(priced).map_values(lambda one: one), "map_values-orders-2"),
    (lambda s: s.merge(s.map_values(priced)), "merge-orders"),
    (lambda s: s.process(Quiet), "process-orders"),
    (lambda s: s.reduce(lambda left, right: left).map_values(lambda one: one), "map_values-orders"),
]


@pytest.mark.parametrize(("add", "serializer"), KNOWN)
def test_a_sink_writes_what_is_known_of_the_values(
    add: Callable[[Any], Any], serializer: str
) -> None:
    builder, orders = keyed_orders()
    sink = builder_sink(builder, add(orders).sink("out").name)
    assert repr(sink.serializer) == serializer


def builder_sink(builder: StreamBuilder, name: str) -> Sink:
    (sink,) = (one for one in builder.operators if one.name == name)
    assert isinstance(sink, Sink)
    return sink


@pytest.mark.parametrize(("add", "maker"), UNKNOWN)
def test_a_sink_asks_for_a_serde_where_nothing_is_known(
    add: Callable[[Any], Any], maker: str
) -> None:
    _, orders = keyed_orders()
    message = (
        rf"sink to 'out' at .*{HERE}:\d+ names no serde, and operator '{maker}' \(made at"
        rf" .*{HERE}:\d+\) emits values of type unknown\n.*\(topic, Order\) or .* -> Priced', or name a serde: sink"
    )
    with pytest.raises(TopologyError, match=message):
        add(orders).sink("out")


def test_annotated_functions_are_all_that_a_pipeline_needs() -> None:
    builder, orders = keyed_orders()
    prices = orders.map_values(priced)
    prices.reduce(dearest).sink("dearest")
    prices.join(orders, lambda price, order: order).sink("both", Order)
    prices.to_table().join(builder.table("limits", Priced), dearest).sink("limited")
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("limits", Priced).send(Priced("tea", 4.0), key="tea")
        driver.input("orders", Order).pipe([Order("tea", 2), Order("tea", 1)])
        assert driver.output("dearest", Priced).read_all()[-1].value == Priced("tea", 3.0)
        assert driver.output("both", Order).read().value == Order("tea", 2)
        assert driver.output("limited", serdes.json).read().value == {"item": "tea", "gross": 4.0}


def test_shapes_of_state_that_was_there_before_types_had_serdes_stay() -> None:
    builder, orders = keyed_orders()
    prices = orders.map_values(priced)
    prices.window(tumbling(timedelta(1))).count(name="windows").sink("windows")
    prices.group_by("item").agg(count(), name="groups").sink("groups", serdes.json)
    topology = builder.build()
    values = [state_shape(topology.operator(name))["value"] for name in ("windows", "groups")]
    assert values == ["nothing", "plain"]
