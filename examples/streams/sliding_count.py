"""Clicks of the last five seconds, told anew every two: windows that overlap."""

from __future__ import annotations

from datetime import timedelta

from examples.streams.running import Given, main
from headrace import StreamBuilder, hopping, serdes

builder = StreamBuilder("example-sliding-count")
clicks = builder.source("clicks", serdes.json, allowed_lateness=timedelta(0))
(
    clicks.key_by(lambda page: page)
    .window(hopping(timedelta(seconds=5), timedelta(seconds=2)))
    .count()
    .sink("counts", serdes.json)
)
topology = builder.build()

RECORDS = [
    Given("clicks", "home", 14.5),
    Given("clicks", "home", 16),
    Given("clicks", "home", 30),
]

if __name__ == "__main__":
    main(topology, RECORDS)
