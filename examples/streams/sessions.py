"""Visits to a shop: clicks of a visitor with no pause longer than thirty seconds.

A click that comes late joins the two runs between which it lies.
"""

from __future__ import annotations

from datetime import timedelta

from examples.streams.running import Given, main
from headrace import StreamBuilder, serdes, session

builder = StreamBuilder("example-sessions")
clicks = builder.source("clicks", serdes.json, allowed_lateness=timedelta(seconds=40))
(
    clicks.key_by(lambda click: click["visitor"])
    .window(session(timedelta(seconds=30)))
    .count()
    .sink("visits", serdes.json)
)
topology = builder.build()


def click(visitor: str, second: float) -> Given:
    """Make a click."""
    return Given("clicks", {"visitor": visitor}, second)


RECORDS = [
    click("ann", 0),
    click("ann", 10),
    click("bob", 12),
    click("ann", 70),
    # Between the runs that end at 10 and begin at 70: one visit now.
    click("ann", 40),
    click("bob", 300),
]

if __name__ == "__main__":
    main(topology, RECORDS)
