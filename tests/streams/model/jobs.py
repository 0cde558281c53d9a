"""Many plans as one job: they read the same topics, and each writes one of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given as with_data, seed, settings, strategies as st

from headrace import StreamBuilder, Topology, serdes
from tests.streams.model.inputs import ALL_QUEUES, QUEUES, Sent, ends, plans
from tests.streams.model.joins import Interval, Last, LookedUp, Met, Shared, Tables
from tests.streams.model.plans import (
    Branched,
    Each,
    Merged,
    Plan,
    Sessions,
    Slides,
    Source,
    Steps,
    Twice,
    Windows,
)
from tests.streams.model.updates import Columns, Latest, Retracted

__all__ = ["FIXED", "SEED", "all_plans", "merged", "output", "records"]

#: What random plans and records are made of; the tests print how to set it.
SEED = int(os.environ.get("MODEL_SEED", "0"))

_A, _B = Source("a"), Source("b")
_MERGED = Steps(Merged(_A, Steps(_B, ("flat_map",))), ("where",))

#: What random plans are made of, each once, and what feeds what.
FIXED: tuple[Plan, ...] = (
    Each(Steps(_MERGED, ("key_by",)), "sum"),
    Latest(Branched(_A), "collect"),
    Retracted(_MERGED, "sum", "avg"),
    Columns(_MERGED),
    Windows(Windows(_MERGED, "count", 50, 20, 15), "sum", 100, 100),
    Twice(Sessions(_MERGED, "top", 30), Windows(_MERGED, "count_distinct", 50, 50)),
    Slides(Branched(_B), "avg", 30),
    Interval(Steps(_A, ("key_by",)), Steps(_B, ("key_by",)), "outer_join", 10, 45, 15),
    Interval(Windows(_A, "sum", 50, 50), _B, "left_join", 45, 45),
    Shared(_A, _B, "left_join", 50, 20),
    Met(_A, _B, "outer_join", 5),
    Last(_A, Steps(_B, ("map",)), "left_join"),
    Tables(_A, _B, "outer_join"),
    LookedUp(_A, _B, "left_join"),
)
_DRAWN = 6


def all_plans(number: int = SEED) -> list[Plan]:
    """Give the fixed plans, and some that a seed makes."""
    drawn: list[list[Plan]] = []

    @seed(number)
    @settings(
        # The first example of all is the simplest one.
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @with_data(st.lists(plans(), min_size=_DRAWN, max_size=_DRAWN))
    def draw(chosen: list[Plan]) -> None:
        drawn.append(chosen)

    draw()
    return [*FIXED, *drawn[-1]]


def records(number: int = SEED, count: int = 90) -> list[Sent]:
    """Make records whose times wander on, with strays, and the ends of all queues."""
    chance = random.Random(number)
    sent = []
    for at in range(count):
        topic = chance.choice(sorted(QUEUES))
        time = max(0, 6 * at + chance.randint(-60, 20))
        queue, key = chance.randrange(QUEUES[topic]), chance.choice("xyz")
        sent.append(Sent(topic, queue, key, chance.randint(0, 9), time))
    return sent + ends(ALL_QUEUES)


def merged(chosen: Sequence[Plan], name: str) -> Topology:
    """Build plans side by side."""
    builder = StreamBuilder(name)
    made: dict[str, object] = {}
    for number, plan in enumerate(chosen):
        plan.stream(made, builder).sink(output(number), serdes.json)
    return builder.build()


def output(number: int) -> str:
    """Name the topic that a plan writes."""
    return f"out-{number}"
