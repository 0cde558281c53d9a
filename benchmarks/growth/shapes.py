"""Every operator that keeps state for a time, each over many keys: what grows, and goes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.growth.jobs import Event
from headrace import (
    Context,
    Fired,
    Processor,
    Record,
    StreamBuilder,
    count_window,
    event_timer,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
    value_state,
)
from headrace.topology import Topology

__all__ = ["SHAPES", "Shape"]

#: Length of windows, gaps and intervals, ms.
LENGTH = 10_000
_LENGTH = timedelta(milliseconds=LENGTH)
_TWO = ("left", "right")

Make = Callable[[dict[str, Any]], Any]
"""Makes a stream of results out of the sources, by topic."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A topology, and how much of its input makes one window."""

    make: Make
    topics: tuple[str, ...] = ("left",)
    #: Records of each key, and windows that they make.
    records: int = 1
    windows: int = 1

    def topology(self) -> Topology:
        """Build it."""
        builder = StreamBuilder("growth")
        serde = serdes.with_key(serdes.json(int), of=str)
        sources = {
            topic: builder.source(topic, serde).where(lambda number: number >= 0)
            for topic in self.topics
        }
        self.make(sources).sink("results", serdes.json)
        return builder.build()

    def events(self, first: int, stop: int, *, per_second: int) -> Iterator[Event]:
        """Give the records of the windows with some numbers, each of a key of its own."""
        for number in range(first // self.windows, stop // self.windows):
            at = number * 1000 // per_second
            for topic in self.topics:
                for more in range(self.records):
                    yield topic, f"key-{number}", number, at + more

    def last(self, number: int, *, per_second: int) -> list[Event]:
        """Give records that only bring event time past all windows before them."""
        at = number * 1000 // per_second
        return [(topic, "last", -1, at + 100 * LENGTH) for topic in self.topics]


class _Remembers(Processor[str, int, str, int]):
    """Keeps a value for a while, and has a timer tell when it is time."""

    def init(self, context: Context) -> None:
        self.context = context
        self.seen, self.time = context.value("seen"), context.timer("time")

    def process(self, record: Record[str, int]) -> None:
        self.seen.put(record.value)
        self.time.set(record.time + _LENGTH / 2)

    def fire(self, timer: Fired[str]) -> None:
        self.context.forward(Record(timer.key, self.seen.get(), timer.time))


def _windowed(windows: Any) -> Make:
    return lambda of: of["left"].group_by_key().window(windows).sum().to_stream()


def _joined(bound: Callable[[Any], Any]) -> Make:
    def make(of: dict[str, Any]) -> Any:
        return bound(of["left"].outer_join(of["right"])).apply(lambda left, right: [left, right])

    return make


def _processed(of: dict[str, Any]) -> Any:
    states = [value_state("seen", serdes.int, ttl=_LENGTH)]
    return of["left"].process(_Remembers, states=states, timers=[event_timer("time")])


SHAPES = {
    "tumbling": Shape(_windowed(tumbling(_LENGTH))),
    "hopping": Shape(_windowed(hopping(_LENGTH, _LENGTH / 5)), windows=5),
    "session": Shape(_windowed(session(_LENGTH)), records=2),
    "sliding": Shape(_windowed(sliding(_LENGTH))),
    "count": Shape(_windowed(count_window(2)), records=2),
    "interval_join": Shape(_joined(lambda join: join.within(_LENGTH)), _TWO),
    "window_join": Shape(_joined(lambda join: join.window(tumbling(_LENGTH))), _TWO),
    "session_join": Shape(_joined(lambda join: join.window(session(_LENGTH))), _TWO),
    "process": Shape(_processed),
}
