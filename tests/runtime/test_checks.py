"""What keeps a job from starting, of what was read from its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace import StreamBuilder, serdes
from headrace.errors import (
    CannotStartError,
    ConfigurationError,
    HeadraceError,
    OffsetExpiredError,
    PartitionCountError,
    SettingsError,
    StateError,
    TopicNotFoundError,
    refuse,
)
from headrace.protocol.transactions import CommitRecord, PlanAnswer, StateSummary
from headrace.runtime.checks import ClusterSnapshot, needed_topics, start_problems
from headrace.runtime.job_plan import JobPlan
from headrace.settings import JobSettings
from headrace.topology import Topology

QUEUE = "lines@broker-a@0"
NAMESRV = "127.0.0.1:9876"


def topology(**source: Any) -> Topology:
    builder = StreamBuilder("job")
    people = builder.table("people", serdes.string)
    lines = builder.source("lines", serdes.string, on_error="topic:dead", **source)
    lines.key_by(len).count(name="words").to_stream().sink("counts", serdes.json)
    people.to_stream().through("loop", serde=serdes.string).sink("names", serdes.string)
    return builder.build()


def commit(entries: Mapping[str, int], *, offset: int = 7, partitions: int = 2) -> CommitRecord:
    states = [
        StateSummary(
            store=store,
            partition=0,
            count=count,
            checksum=0,
            size=1,
            epoch=1,
            batch=3,
            attempt=0,
            end_offset=count,
        )
        for store, count in entries.items()
    ]
    return CommitRecord(
        kind="commit",
        job="job",
        epoch=1,
        batch=3,
        partitions=partitions,
        offsets={QUEUE: offset},
        states=states,
        lineage=[],
        timestamp=0,
    )


def seen(
    record: CommitRecord | None = None, *, begin: int = 0, end: int = 10, **more: Any
) -> ClusterSnapshot:
    answer = PlanAnswer(
        record=record,
        begins={QUEUE: begin},
        ends={QUEUE: end},
        latest={QUEUE: end},
        position=0,
        clock=0,
    )
    return ClusterSnapshot(answer=answer, was_started=record is not None, **more)


def problems(snapshot: ClusterSnapshot, start: Any = None, **given: Any) -> list[HeadraceError]:
    fixed: dict[str, Any] = {"namesrv": NAMESRV, "partitions": 2}
    plan = JobPlan(topology(start=start), JobSettings(**fixed | given), NAMESRV, embedded=True)
    return start_problems(plan, {}, snapshot)


def test_topics_that_a_job_makes_itself_are_not_needed() -> None:
    found = {needed.name: needed.compacted for needed in needed_topics(topology())}
    assert found == {
        "people": True,
        "lines": False,
        "dead": False,
        "counts": False,
        "names": False,
    }


@pytest.mark.parametrize(
    ("snapshot", "given", "kind", "message", "hint"),
    [
        (
            seen(missing=frozenset({"people"})),
            {},
            TopicNotFoundError,
            "reads topic 'people', which does not exist on 127.0.0.1:9876: source 'source-people'",
            "make it: headrace topic create people --namesrv 127.0.0.1:9876 --queues 2 --compaction",
        ),
        (
            seen(missing=frozenset({"counts"})),
            {"namesrv": None, "data_dir": Path("folder"), "partitions": 3},
            TopicNotFoundError,
            "writes topic 'counts', which does not exist",
            "make it: headrace topic create counts --data-dir folder --queues 3,",
        ),
        (
            seen(commit({}), missing=frozenset({"dead"})),
            {},
            TopicNotFoundError,
            "writes dead letters to topic 'dead', which does not exist",
            "if it was there before, start its broker instead, which is away",
        ),
        (
            seen(not_compacted={"people": "broker-a"}),
            {},
            ConfigurationError,
            "reads topic 'people' as a table, and it is no compaction topic on broker 'broker-a'",
            "headrace topic create people --namesrv 127.0.0.1:9876 --queues 2 --compaction",
        ),
        (
            seen(commit({"gone": 5})),
            {},
            StateError,
            "job 'job' has state of gone that its topology cannot use",
            "drop it with --allow-state-loss",
        ),
        (
            seen(commit({}, partitions=4)),
            {},
            PartitionCountError,
            "has its state in 4 partitions, but was started with 2",
            "headrace job rescale job --partitions 2",
        ),
        (
            seen(commit({}), begin=9),
            {},
            OffsetExpiredError,
            f"must go on at offset 7 of queue {QUEUE}, but the broker's first offset is 9",
            "on_expired_offset='earliest'",
        ),
        (
            seen(commit({}), end=4),
            {},
            OffsetExpiredError,
            f"must go on at offset 7 of queue {QUEUE}, which ends at 4",
            "headrace job reset job --to",
        ),
        (
            seen(),
            {"start": {5: 0}},
            SettingsError,
            "source 'source-lines' of job 'job' starts at an offset of queue 5, which does not exist",
            f"its queues are {QUEUE}",
        ),
        (seen(), {"start": {0: 11}}, OffsetExpiredError, "which ends at 10", "earliest"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_keeps_a_job_from_starting_says_what_to_do(
    snapshot: ClusterSnapshot,
    given: dict[str, Any],
    kind: type[HeadraceError],
    message: str,
    hint: str,
) -> None:
    (problem,) = problems(snapshot, **given)
    assert type(problem) is kind
    assert message in problem.message
    assert problem.hint is not None
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("snapshot", "given"),
    [
        (seen(), {}),
        (seen(), {"start": {0: 10}}),
        (seen(commit({"words": 2, "gone": 0})), {}),
        (seen(commit({"gone": 5})), {"allow_state_loss": True}),
        (seen(commit({}), begin=9), {"on_expired_offset": "earliest"}),
        # The source has begun to read: where it was to begin does not matter any more.
        (seen(commit({})), {"start": {0: 11}}),
        # Its broker is away, and nobody knows how far its queue reaches.
        (seen(commit({}, offset=7), begin=7, end=7), {}),
    ],
)
def test_what_a_job_can_start_with_is_no_problem(
    snapshot: ClusterSnapshot, given: dict[str, Any]
) -> None:
    assert problems(snapshot, **given) == []


def test_all_problems_are_one_error() -> None:
    found = problems(
        seen(commit({"gone": 5}), begin=9, missing=frozenset({"lines", "counts"})),
    )
    with pytest.raises(CannotStartError) as caught:
        refuse("job 'job' cannot start", found)
    assert caught.value.parts == tuple(found)
    assert [type(part) for part in found] == [
        TopicNotFoundError,
        TopicNotFoundError,
        StateError,
        OffsetExpiredError,
    ]
    assert str(caught.value).startswith("job 'job' cannot start, for 4 reasons:\n  job 'job' reads")
    assert all(str(part).replace("\n", "\n  ") in str(caught.value) for part in found)
    with pytest.raises(TopicNotFoundError, match=r"(?s)for 2 reasons:.*'lines'.*'counts'"):
        refuse("job 'job' cannot start", found[:2])
