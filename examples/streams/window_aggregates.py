"""Temperatures per sensor: all that there is to say of every ten seconds, in one row.

A reading that comes up to two seconds late still counts; the one that comes later goes to a topic
of its own.  Results come when the window closes.
"""

from __future__ import annotations

from datetime import timedelta

from examples.streams.running import Given, main
from headrace import StreamBuilder, avg, count, max_, min_, serdes, sum_, tumbling


def degrees(reading: dict[str, float]) -> float:
    """Give the temperature of a reading."""
    return reading["degrees"]


builder = StreamBuilder("example-window-aggregates")
readings = builder.source("readings", serdes.json, allowed_lateness=timedelta(seconds=2))
windows = readings.key_by(lambda reading: reading["sensor"]).window(tumbling(timedelta(seconds=10)))
weather = windows.agg(
    readings=count(),
    total=sum_(degrees),
    mean=avg(degrees),
    coldest=min_(degrees),
    warmest=max_(degrees),
)
weather.sink("weather", serdes.json)
weather.late().sink("late", serdes.json)
topology = builder.build()


def reading(sensor: str, temperature: float, second: float) -> Given:
    """Make a reading."""
    return Given("readings", {"sensor": sensor, "degrees": temperature}, second)


RECORDS = [
    reading("roof", 4, 1),
    reading("cellar", 11, 3),
    reading("roof", 8, 9),
    # Two seconds behind: the window is still open.
    reading("roof", 6, 11),
    reading("roof", 3, 9.5),
    reading("roof", 5, 13),
    reading("cellar", 12, 2),
    reading("cellar", 10, 30),
]

if __name__ == "__main__":
    main(topology, RECORDS)
