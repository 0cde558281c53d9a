"""Orders and payments by number, whenever they come: an inner and a left join, RIP-58's tables.

Both joins keep the last value of each side, and keep it once.
"""

from __future__ import annotations

from examples.streams.running import Given, main
from headrace import StreamBuilder, serdes

builder = StreamBuilder("example-joins")
orders = builder.source("orders", serdes.json).key_by(lambda order: order["number"])
payments = builder.source("payments", serdes.json).key_by(lambda payment: payment["order"])


def told(order: dict[str, str], payment: dict[str, str] | None) -> str:
    """Say what is known of an order."""
    return f"{order['what']} {'not paid' if payment is None else 'paid by ' + payment['how']}"


orders.join(payments).apply(told).sink("paid", serdes.json)
orders.left_join(payments).apply(told).sink("orders-seen", serdes.json)
topology = builder.build()

RECORDS = [
    Given("orders", {"number": 1, "what": "tea"}, 0),
    Given("payments", {"order": 2, "how": "card"}, 1),
    Given("orders", {"number": 2, "what": "jam"}, 2),
    Given("payments", {"order": 3, "how": "cash"}, 3),
]

if __name__ == "__main__":
    main(topology, RECORDS)
