"""Where a job begins to read: which sources begin, and at which offsets."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import serdes
from headrace.protocol.transactions import PlanAnswer
from headrace.runtime.planning import chosen_offsets, sources_that_begin
from headrace.topology import Source, Start

QUEUES = ["a@x@0", "a@x@1", "b@x@0"]
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def source(name: str, topic: str | tuple[str, ...] | re.Pattern[str], **more: Any) -> Source:
    reader = serdes.as_deserializer(serdes.string)
    return Source(name=name, parents=(), topic=topic, deserializer=reader, **more)


@pytest.mark.parametrize(
    ("committed", "restarted", "beginning"),
    [
        # A job that has never run.
        ([], False, ["one", "both", "like", "always"]),
        # One queue of a topic is enough to know the topic: its other queues have joined it.
        (["a@x@1"], False, ["always", "other"]),
        (["a@x@1", "b@x@0"], False, ["always"]),
        # A job that goes on by itself does not start anew.
        (["a@x@1", "b@x@0"], True, []),
    ],
)
def test_start_holds_for_sources_that_were_never_read_or_that_say_so(
    committed: list[str], restarted: bool, beginning: list[str]
) -> None:
    sources = [
        source("one", "a"),
        source("both", ("a", "b")),
        source("like", re.compile("[ab]")),
        source("always", "a", start_once=False),
    ]
    if "other" in beginning:
        sources.append(source("other", "b"))
    offsets = dict.fromkeys(committed, 7)
    found = sources_that_begin(sources, offsets, QUEUES, restarted=restarted)
    assert [each.name for each in found] == beginning


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("first", {}),
        ("latest", {"a@x@0": 10, "a@x@1": 20}),
        (NOON, {"a@x@0": 4, "a@x@1": 4}),
        ({1: 5}, {"a@x@1": 5}),
        ({"a@x@0": 3, 1: 5}, {"a@x@0": 3, "a@x@1": 5}),
        ({0: 9, "a@x@0": 3}, {"a@x@0": 3}),
    ],
)
def test_a_source_begins_where_its_start_says(start: Start, offsets: dict[str, int]) -> None:
    answer = PlanAnswer(
        record=None,
        begins=dict.fromkeys(QUEUES, 1),
        ends={},
        latest={"a@x@0": 10, "a@x@1": 20, "b@x@0": 30},
        position=0,
        clock=0,
    )

    def at(queues: Collection[str], moment: datetime) -> dict[str, int]:
        assert moment == NOON
        return dict.fromkeys(queues, 4)

    assert chosen_offsets(start, QUEUES[:2], answer, at) == offsets
