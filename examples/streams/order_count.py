"""Counts the orders of each customer, and adds up what they cost, with one reading of the topic.

Orders that were called off are left out behind the shuffle, where they already have their key.
"""

from __future__ import annotations

from examples.streams.running import Given, main
from headrace import StreamBuilder, serdes

builder = StreamBuilder("example-order-count")
orders = (
    builder.source("orders", serdes.json)
    .key_by(lambda order: order["customer"])
    .where(lambda order: not order["called_off"])
)
orders.count(name="orders").sink("order-counts", serdes.json)
orders.sum(lambda order: order["price"], name="spent").sink("spent", serdes.json)
topology = builder.build()


def order(customer: str, price: int, second: float, *, called_off: bool = False) -> Given:
    """Make an order."""
    value = {"customer": customer, "price": price, "called_off": called_off}
    return Given("orders", value, second)


RECORDS = [
    order("ann", 30, 0),
    order("bob", 5, 1),
    order("ann", 100, 2, called_off=True),
    order("ann", 12, 3),
]

if __name__ == "__main__":
    main(topology, RECORDS)
