"""Orders and shipments: what leaves within an hour, and, when the hour is over, what did not."""

from __future__ import annotations

from datetime import timedelta

from examples.streams.running import Given, main
from headrace import StreamBuilder, serdes

builder = StreamBuilder("example-join-within")
orders = builder.source("orders", serdes.json).key_by(lambda order: order["number"])
shipments = builder.source("shipments", serdes.json).key_by(lambda shipment: shipment["order"])


def told(order: dict[str, str], shipment: dict[str, str] | None) -> str:
    """Say what became of an order."""
    return f"{order['what']}: {'late' if shipment is None else shipment['carrier']}"


(
    orders.left_join(shipments)
    .within(timedelta(0), timedelta(hours=1))
    .apply(told)
    .sink("first-hour", serdes.json)
)
topology = builder.build()

RECORDS = [
    Given("orders", {"number": 1, "what": "tea"}, 0),
    Given("orders", {"number": 2, "what": "jam"}, 60),
    Given("shipments", {"order": 1, "carrier": "van"}, 1800),
    # One order in two parcels: two pairs.
    Given("shipments", {"order": 1, "carrier": "bike"}, 2400),
    Given("shipments", {"order": 2, "carrier": "van"}, 7200),
    Given("orders", {"number": 3, "what": "salt"}, 7300),
]

if __name__ == "__main__":
    main(topology, RECORDS)
