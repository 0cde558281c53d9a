"""Random input: records out of order over several queues, and what the model knows of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.streams.model.plans import (
    FLUSH,
    FLUSH_VALUE,
    LATENESS,
    Each,
    Input,
    Interval,
    Last,
    Merged,
    Plan,
    Record,
    Sessions,
    Source,
    Steps,
    Twice,
    Windows,
)

__all__ = ["QUEUES", "Sent", "given", "plans", "rows"]

#: Queues of each topic.
QUEUES = {"a": 2, "b": 3}
_SPAN = 400
_END = 1_000_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A record that is sent."""

    topic: str
    queue: int
    key: str
    value: int
    time: int


@st.composite
def _row(draw: st.DrawFn) -> Sent:
    topic = draw(st.sampled_from(sorted(QUEUES)))
    return Sent(
        topic,
        draw(st.integers(0, QUEUES[topic] - 1)),
        draw(st.sampled_from("xyz")),
        draw(st.integers(0, 9)),
        draw(st.integers(0, _SPAN)),
    )


def rows(most: int = 40) -> st.SearchStrategy[list[Sent]]:
    """Make records whose times wander, and the ends of all queues."""
    ends = [Sent(t, q, FLUSH, FLUSH_VALUE, _END) for t in QUEUES for q in range(QUEUES[t])]
    return st.lists(_row(), max_size=most).map(lambda sent: sent + ends)


def given(sent: Sequence[Sent]) -> Input:
    """Say of each record what the watermark of its queue was before it."""
    highest: dict[tuple[str, int], int] = {}
    found: Input = defaultdict(list)
    for at, one in enumerate(sent):
        queue = (one.topic, one.queue)
        below = highest[queue] - LATENESS if queue in highest else None
        highest[queue] = max(one.time, highest.get(queue, one.time))
        found[one.topic].append((at, Record(one.key, one.value, one.time, below)))
    return found


_STEPS = st.lists(st.sampled_from(["map", "filter", "flat_map", "key_by"]), max_size=3).map(tuple)
_GRACE = st.sampled_from([0, 15, 60])
_METHODS = st.sampled_from(["join", "left_join", "outer_join"])
_SIMPLE = st.builds(Steps, st.sampled_from("ab").map(Source), _STEPS)
_STREAMS = st.one_of(_SIMPLE, st.builds(Steps, st.builds(Merged, _SIMPLE, _SIMPLE), _STEPS))
_WINDOWS = st.one_of(
    st.builds(
        Windows, _STREAMS, st.sampled_from(["count", "sum"]), st.just(50), st.just(50), _GRACE
    ),
    st.builds(
        Windows, _STREAMS, st.sampled_from(["count", "sum"]), st.just(50), st.just(20), _GRACE
    ),
    st.builds(Sessions, _STREAMS, st.sampled_from(["count", "sum"]), st.sampled_from([5, 30])),
)
_DISTANCE = st.sampled_from([0, 10, 45])


def plans() -> st.SearchStrategy[Plan]:
    """Make plans of one or two operators with state."""
    return st.one_of(
        st.builds(Each, _STREAMS, st.sampled_from(["count", "sum", "max"])),
        _WINDOWS,
        st.builds(Windows, _WINDOWS, st.just("sum"), st.just(100), st.just(100)),
        st.builds(Twice, _WINDOWS, _WINDOWS),
        st.builds(Interval, _STREAMS, _STREAMS, _METHODS, _DISTANCE, _DISTANCE, _GRACE),
        st.builds(Interval, _WINDOWS, _STREAMS, _METHODS, _DISTANCE, _DISTANCE),
        st.builds(Last, _SIMPLE, _SIMPLE, _METHODS),
    )
