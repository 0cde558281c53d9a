"""Which messages are the next committed batch, and how far a sink is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace import StreamBuilder, serdes
from headrace.client import Admin, Client, MessageQueue
from headrace.errors import OffsetExpiredError, StateError
from headrace.protocol.columns import MessageColumns, decode_columns
from headrace.protocol.records import encode_records
from headrace.protocol.stamps import stamp_records
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.batches.cutting import CommittedBatch, Cutter, make_tag
from headrace.runtime.batches.reading import SinkPosition, SinkPositions, begins_within
from headrace.topology import BatchSink

Tag = tuple[int, int]
"""Epoch and batch; batch 0 for a message that has no tag."""


@dataclass
class Found:
    found: MessageColumns

    def columns(self) -> MessageColumns:
        return self.found


class Topic:
    """Queues in memory, by their tags."""

    def __init__(self, queues: dict[str, list[Tag]]) -> None:
        self.queues = queues
        self.read = 0

    def blocks(self, queue: MessageQueue, begin: int, end: int) -> Iterator[Found]:
        # A block holds more than was asked for, as a broker's may.
        tags = self.queues[queue.name][begin : end + 2]
        self.read += len(tags)
        raw = [make_tag(*tag, has_value=True) if tag[1] else b"" for tag in tags]
        records = encode_records(
            queue.topic, queue.queue_id, [b""] * len(raw), pa.array(raw, pa.binary()), born=0
        )
        stamp_records(records, begin, 0, 0, ("127.0.0.1", 0))
        yield Found(decode_columns(records.data))

    @property
    def ends(self) -> dict[str, int]:
        return {name: len(tags) for name, tags in self.queues.items()}


def cuts(topic: Topic, record: CommitRecord, *, exact: bool) -> list[CommittedBatch]:
    cutter, begins, found = Cutter(topic, exact=exact), dict.fromkeys(topic.queues, 0), []
    while (cut := cutter.next(begins, topic.ends, record)) is not None:
        found.append(cut)
        begins |= {queue: end for queue, (_, end) in cut.ranges.items()}
    return found


def record(batch: int, lineage: list[list[int]]) -> CommitRecord:
    return CommitRecord(job="job", kind="commit", epoch=9, batch=batch, lineage=lineage)


sizes = st.lists(st.integers(0, 9), max_size=12)


@given(st.lists(sizes, min_size=1, max_size=3), st.integers(0, 12))
def test_committed_batches_are_cut_as_they_were_written(
    queues: list[list[int]], committed: int
) -> None:
    topic = Topic(
        {
            f"t@b@{number}": [
                (1, batch) for batch, size in enumerate(given_sizes, 1) for _ in range(size)
            ]
            for number, given_sizes in enumerate(queues)
        }
    )
    found = cuts(topic, record(committed, [[1, 1]]), exact=True)
    expected = {
        batch: {
            name: (tags.index((1, batch)), tags.index((1, batch)) + tags.count((1, batch)))
            for name, tags in topic.queues.items()
            if (1, batch) in tags
        }
        for batch in range(1, committed + 1)
    }
    assert {cut.batch: cut.ranges for cut in found} == {b: r for b, r in expected.items() if r}
    assert [cut.batch for cut in found] == sorted(cut.batch for cut in found)
    assert {cut.epoch for cut in found} <= {1}


def test_finding_a_batch_costs_by_its_size_and_not_by_what_waits() -> None:
    topic = Topic({"t@b@0": [(1, 1)] * 5 + [(1, batch) for batch in range(2, 100_000)]})
    cut = Cutter(topic, exact=True).next({"t@b@0": 0}, topic.ends, record(99_999, [[1, 1]]))
    assert cut is not None
    assert cut.ranges == {"t@b@0": (0, 5)}
    assert topic.read < 50


written = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 4)), max_size=12)


@given(written, st.lists(st.tuples(st.just(1), st.integers(3, 4)), max_size=3))
def test_left_overs_of_failed_batches_hide_no_committed_message(
    tags: list[Tag], late: list[Tag]
) -> None:
    # Batches up to 2 are the first driver's, later ones the second's; all else is left over.
    lineage = [[1, 1], [2, 3]]
    owners = {1: 1, 2: 1, 3: 2, 4: 2}
    # A batch is begun when the one before it is committed, so what it leaves comes after that;
    # a driver that does not know that it was replaced may write late.
    mixed = [*sorted(tags, key=lambda tag: tag[1]), *late]
    topic = Topic({"t@b@0": mixed})
    handed = [
        (cut.epoch, cut.batch)
        for cut in cuts(topic, record(4, lineage), exact=False)
        for place in range(*cut.ranges["t@b@0"])
        if mixed[place] == (cut.epoch, cut.batch)
    ]
    assert handed == [tag for tag in mixed if owners.get(tag[1]) == tag[0]]


def batch_sink(job: str) -> BatchSink:
    builder = StreamBuilder(job)
    builder.source("words", serdes.string).for_each_batch(lambda *_: None, name="each")
    return builder.build().batch_sinks[0]


@pytest.fixture
def sink(client: Client, make_topic: Callable[..., str]) -> BatchSink:
    found = batch_sink(make_topic())
    Admin(client).create_topic(found.topic, queues=2)
    Admin(client).create_topic(
        found.done_topic, queues=1, attributes={"cleanup.policy": "COMPACTION"}
    )
    return found


def test_the_newest_position_counts(client: Client, sink: BatchSink) -> None:
    positions = SinkPositions(client, "job", sink)
    assert positions.read() is None
    for batch in (1, 2):
        positions.write(SinkPosition(batch=batch, offsets={f"{sink.topic}@b@0": batch}))
    expected = SinkPosition(batch=2, offsets={f"{sink.topic}@b@0": 2})
    while (found := SinkPositions(client, "job", sink).read()) != expected:
        # A RocketMQ broker shows a message a moment after it took it.
        assert found is None or found.batch < 2


def test_position_behind_the_end_is_named() -> None:
    position = SinkPosition(batch=1, offsets={"t@b@0": 3})
    with pytest.raises(
        StateError, match=r"must go on at offset 3 of .* which ends at 0: the topic"
    ):
        begins_within("job", batch_sink("job"), position, {"t@b@0": (0, 0)}, skip=False)


def test_position_before_the_first_message_is_named_unless_it_may_be_skipped() -> None:
    position, held = (
        SinkPosition(batch=1, offsets={"t@b@0": 3}),
        {"t@b@0": (10, 20), "t@b@1": (0, 5)},
    )
    with pytest.raises(OffsetExpiredError, match="7 records are gone that were never handed over"):
        begins_within("job", batch_sink("job"), position, held, skip=False)
    found = begins_within("job", batch_sink("job"), position, held, skip=True)
    assert found == {"t@b@0": 10, "t@b@1": 0}
