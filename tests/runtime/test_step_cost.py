"""A step costs by what changed, whatever else is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import StreamBuilder, TopologyTestDriver, hopping, serdes, session, sliding, tumbling
from headrace.runtime import LayeredStore

EPOCH = datetime.fromtimestamp(0, UTC)
SECOND = timedelta(seconds=1)


def joined(name: str) -> Callable[[Any], Any]:
    def add(events: Any) -> Any:
        join = events.left_join(events)
        bound = join.within(SECOND) if name == "within" else join.window(WINDOWS[name])
        return bound.apply(lambda left, right: [left, right])

    return add


def summed(name: str) -> Callable[[Any], Any]:
    return lambda events: events.group_by_key().window(WINDOWS[name]).sum().to_stream()


WINDOWS = {
    "tumbling": tumbling(10 * SECOND),
    "hopping": hopping(10 * SECOND, 5 * SECOND),
    "sliding": sliding(10 * SECOND),
    "session": session(10 * SECOND),
}

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "count": lambda events: events.group_by_key().count().to_stream(),
    **{name: summed(name) for name in WINDOWS},
    **{f"join-{name}": joined(name) for name in ("within", "tumbling", "session")},
}


class Meter:
    """Counts what is read of state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: Counter[str] = Counter()
        get_many, scan_range, scan = LayeredStore.get_many, LayeredStore.range, LayeredStore.scan

        def counted_get(store: LayeredStore, keys: list[bytes]) -> list[bytes | None]:
            self.reads["get"] += len(keys)
            return get_many(store, keys)

        def counted_range(
            store: LayeredStore, start: bytes, stop: bytes
        ) -> Iterator[tuple[bytes, bytes]]:
            for entry in scan_range(store, start, stop):
                self.reads["range"] += 1
                yield entry

        def counted_scan(store: LayeredStore) -> Iterator[tuple[bytes, bytes]]:
            self.reads["scan"] += 1
            return scan(store)

        monkeypatch.setattr(LayeredStore, "get_many", counted_get)
        monkeypatch.setattr(LayeredStore, "range", counted_range)
        monkeypatch.setattr(LayeredStore, "scan", counted_scan)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_record_reads_its_own_state_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 22: every put walked all changed keys, every record all windows of its operator."""
    builder = StreamBuilder("cost")
    events = builder.source("in", serdes.with_key(serdes.int), allowed_lateness=3600 * SECOND)
    OPERATORS[name](events).sink("out", serdes.json)
    meter = Meter(monkeypatch)
    cost = []
    with TopologyTestDriver(builder.build(), partitions=1) as driver:
        feed = driver.input("in", serdes.int)
        for count in (20, 500):
            with driver.batch():
                for number in range(count):
                    time = EPOCH + number * 20 * SECOND / 500
                    feed.send(1, key=f"{count}-{number}", time=time)
            meter.reads.clear()
            # Not the newest: event time, which fires timers, stands still.
            feed.send(1, key="one more", time=EPOCH)
            cost.append(meter.reads.copy())
    assert cost[0] == cost[1]
    assert 0 < cost[0].total() < 20
    assert cost[0]["scan"] == 0
