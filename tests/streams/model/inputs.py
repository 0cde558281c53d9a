"""Random input: records out of order over several queues, and what the model knows of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.streams.model.joins import Interval, Last, LookedUp, Met, Shared, Tables
from tests.streams.model.plans import (
    FLUSH,
    FLUSH_VALUE,
    LATENESS,
    Branched,
    Each,
    Input,
    Merged,
    Plan,
    Record,
    Sessions,
    Slides,
    Source,
    Steps,
    Twice,
    Windows,
)
from tests.streams.model.updates import Columns, Latest, Retracted

__all__ = ["ALL_QUEUES", "QUEUES", "Sent", "ends", "given", "plans", "rows"]

#: Queues of each topic.
QUEUES = {"a": 2, "b": 3}
ALL_QUEUES = {topic: range(count) for topic, count in QUEUES.items()}
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
    return st.lists(_row(), max_size=most).map(lambda sent: sent + ends(ALL_QUEUES))


def ends(queues: Mapping[str, Iterable[int]]) -> list[Sent]:
    """Make the records that end queues."""
    return [Sent(topic, q, FLUSH, FLUSH_VALUE, _END) for topic in queues for q in queues[topic]]


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


_STEPS = st.lists(st.sampled_from(["map", "where", "flat_map", "key_by"]), max_size=3).map(tuple)
_GRACE = st.sampled_from([0, 15, 60])
_METHODS = st.sampled_from(["join", "left_join", "outer_join"])
_SIMPLE = st.builds(Steps, st.sampled_from("ab").map(Source), _STEPS)
_BRANCHED = st.builds(Branched, _SIMPLE)
_MERGED = st.builds(Merged, _SIMPLE, st.one_of(_SIMPLE, _BRANCHED))
_STREAMS = st.one_of(_SIMPLE, st.builds(Steps, _MERGED, _STEPS), _BRANCHED)
#: What gives a number, so that more may stand behind it.
_NUMBERS = st.sampled_from(["count", "sum", "max", "min", "count_distinct"])
#: What depends on the set of values alone, and what on their order, too.
_SETS = st.sampled_from(["count", "sum", "max", "min", "count_distinct", "avg", "top"])
_LISTS = st.one_of(_SETS, st.just("collect"))
_SLIDE = st.sampled_from([50, 20])
_GAP = st.sampled_from([5, 30])


def _windows(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[Plan]:
    return st.one_of(
        st.builds(Windows, _STREAMS, kinds, st.just(50), _SLIDE, _GRACE),
        st.builds(Sessions, _STREAMS, kinds, _GAP),
        st.builds(Slides, _STREAMS, kinds, _GAP, _GRACE),
    )


_WINDOWS = _windows(_NUMBERS)
_DISTANCE = st.sampled_from([0, 10, 45])
_LEFT = st.sampled_from(["join", "left_join"])
_SUMS = st.sampled_from(["count", "sum", "avg"])


def plans() -> st.SearchStrategy[Plan]:
    """Make plans of one or two operators with state."""
    return st.one_of(
        st.builds(Each, _STREAMS, _LISTS),
        st.builds(Latest, _STREAMS, _LISTS),
        st.builds(Retracted, _STREAMS, _NUMBERS, _SUMS),
        st.builds(Columns, _STREAMS),
        _windows(_SETS),
        st.builds(Windows, _WINDOWS, st.just("sum"), st.just(100), st.just(100)),
        st.builds(Twice, _WINDOWS, _WINDOWS),
        st.builds(Interval, _STREAMS, _STREAMS, _METHODS, _DISTANCE, _DISTANCE, _GRACE),
        st.builds(Interval, _WINDOWS, _STREAMS, _METHODS, _DISTANCE, _DISTANCE),
        st.builds(Shared, _STREAMS, _STREAMS, _METHODS, st.just(50), _SLIDE, _GRACE),
        st.builds(Met, _STREAMS, _STREAMS, _METHODS, _GAP),
        st.builds(Last, _SIMPLE, _SIMPLE, _METHODS),
        st.builds(Tables, _SIMPLE, _SIMPLE, _METHODS),
        st.builds(LookedUp, _SIMPLE, _SIMPLE, _LEFT),
    )
