"""Batches at bolts: whole, one at a time, and never more control rows than tasks (R21 to R23, R39)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.errors import JobFailedError, RollbackError
from headrace.protocol.transactions import CommitRecord, PlanAnswer, Position, StagedPart
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind, Summary
from headrace.runtime.job_plan import JobPlan
from headrace.runtime.planning import hurries, least_splits, make_splits, plan_batch
from headrace.runtime.testing.job import MemoryJob
from headrace.settings import JobSettings
from headrace.spark.driver import assemble
from headrace.topology import BoltCollector, TaskContext, Topology, Tuple
from headrace.transactions import Bolt, FieldsDeclarer, Spout, StatefulBolt
from tests.transactions.wiring import Wiring


class Numbered(Spout):
    """Emits so many tuples in each batch, each with the number of its batch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("batch", "number")

    def init_state(self, state: Any) -> None:
        self.batch, self.number = (state or 0) + 1, 0

    def next_tuple(self, collector: Any) -> None:
        if self.number < self.count:
            collector.emit([self.batch, self.number])
            self.number += 1

    def finish_batch(self) -> int:
        self.batch, self.number = self.batch + 1, 0
        return self.batch - 1


SEEN: list[tuple[int, list[tuple[str, int]]]] = []


class Gather(StatefulBolt):
    """Keeps what came in each batch."""

    def init_state(self, state: Any) -> None:
        self.taken: list[tuple[str, int]] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.taken.append((tuple.source_component, tuple["batch"]))

    def finish_batch(self) -> int:
        self.number = getattr(self, "number", 0) + 1
        SEEN.append((self.number, self.taken))
        self.taken = []
        return self.number


class Late(Bolt):
    """Passes tuples on, as a slow way does."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("batch", "number")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.collector.emit(tuple.values)


def test_r21_to_r23_a_bolt_takes_whole_batches_from_fast_and_slow_ways() -> None:
    SEEN.clear()
    wiring = Wiring().spout("fast", Numbered(50), batch_size=0)
    wiring.spout("slow", Numbered(3), 2, batch_size=0)
    wiring.bolt("first", Late(), ("slow", "shuffle"), tasks=3)
    wiring.bolt("second", Late(), ("first", "shuffle"), tasks=2)
    wiring.bolt("gather", Gather(), ("fast", "global"), ("second", "global"))
    job = MemoryJob(wiring.build(), 2, {}, 0)
    for _ in range(3):
        job.run([], 0)
    assert [number for number, _ in SEEN] == [1, 2, 3]
    for number, taken in SEEN:
        assert sorted(taken) == [("fast", number)] * 50 + [("second", number)] * 6


def counting(tuples: int) -> Topology:
    wiring = Wiring().spout("spout", Numbered(tuples), batch_size=0)
    wiring.bolt("pass", Late(), ("spout", "shuffle"), tasks=4)
    wiring.bolt("gather", Gather(), ("pass", "fields", ["number"]), tasks=4)
    return wiring.build()


def test_r39_rows_between_tasks_do_not_grow_with_the_tuples() -> None:
    found = []
    for tuples in (100, 10_000):
        job = MemoryJob(counting(tuples), 4, {}, 0)
        job.run([], 0)
        assert job.records["gather"] == tuples
        found.append(job.blocks)
    # One frame per sender and partition, one summary per task; no acknowledgement of any tuple.
    assert found[0] == found[1]
    assert found[0] == {BlockKind.TUPLES: 4 + 4 * 4, BlockKind.SUMMARY: 1 + 2 * 4}


def reported(stage: int, **fields: Any) -> Block:
    part = StagedPart(stage=stage, partition=0, attempt=1, chunks=0, records=0)
    ends: dict[str, int] | None = {} if stage == 0 else None
    summary = Summary(part=part, splits=1, ends=ends, **fields)
    return Block(0, SUMMARY_STAGE, BlockKind.SUMMARY, "", 0, msgspec.json.encode(summary))


@pytest.mark.parametrize("taken", [{"count:0": 6}, {"count:0": 8}, {}])
def test_r22_a_batch_in_which_a_tuple_is_missing_or_doubled_is_refused(
    taken: dict[str, int],
) -> None:
    last = CommitRecord(job="j", kind="open", epoch=1, batch=0, partitions=1)
    sent = {"count:0": 7}
    fine = [reported(0, tuples_sent=sent), reported(1, tuples_taken=sent)]
    assert assemble(last, 1, fine, 2, 0)[0].record.batch == 1
    wrong = [reported(0, tuples_sent=sent), reported(1, tuples_taken=taken)]
    with pytest.raises(JobFailedError, match=r"bolt 'count' took \d tuples .* 7 were sent"):
        assemble(last, 1, wrong, 2, 0)


def attempted(
    stage: int, partition: int, attempt: int, sent: dict[str, int], taken: dict[int, int]
) -> Block:
    part = StagedPart(stage=stage, partition=partition, attempt=attempt, chunks=0, records=0)
    ends: dict[str, int] | None = None if stage or partition else {}
    summary = Summary(part=part, splits=2, ends=ends, blocks_sent=sent, blocks_taken=taken)
    payload = msgspec.json.encode(summary)
    return Block(0, SUMMARY_STAGE, BlockKind.SUMMARY, "", 0, payload, attempt)


@pytest.mark.parametrize(
    ("taken", "of"),
    [
        ([{5: 1, 6: 2}, {6: 1}], None),
        # Of an attempt that does not count, beside the one that does and in its place.
        ([{5: 1, 6: 2, 4: 1}, {6: 1}], 0),
        ([{4: 1, 6: 2}, {6: 1}], 0),
        # What the attempt that counts has made did not arrive, or arrived too often.
        ([{5: 1}, {6: 1}], 0),
        ([{5: 1, 6: 2}, {}], 1),
        ([{5: 1, 6: 2}, {6: 2}], 1),
        # The attempt that counts has made nothing for it.
        ([{5: 1, 6: 2}, {5: 1, 6: 1}], 1),
    ],
)
def test_a_batch_that_mixes_attempts_is_refused_and_tried_again(
    taken: list[dict[int, int]], of: int | None
) -> None:
    last = CommitRecord(job="j", kind="open", epoch=1, batch=0, partitions=2)
    blocks = [
        attempted(0, 0, 5, {"1:0": 1}, {}),
        attempted(0, 1, 6, {"1:0": 2, "1:1": 1}, {}),
        attempted(1, 0, 7, {}, taken[0]),
        attempted(1, 1, 8, {}, taken[1]),
    ]
    if of is None:
        assert assemble(last, 1, blocks, 2, 0)[0].record.batch == 1
        return
    with pytest.raises(RollbackError, match=f"batch 1 mixes attempts: partition {of} of stage 1"):
        assemble(last, 1, blocks, 2, 0)


def test_positions_of_partitions_that_are_gone_are_dropped_unless_other_records_have_them() -> None:
    last = CommitRecord(
        job="j",
        kind="open",
        epoch=1,
        batch=0,
        partitions=1,
        stored_positions={name: Position(offset=1, generation=2) for name in "abc"},
    )
    gone = Position(offset=None, generation=4)
    moved = {"a": gone, "b": gone, "d": Position(offset=7, generation=4)}
    blocks = [reported(0, positions=moved)]
    kept = {"c": last.positions["c"], "d": moved["d"]}
    for elsewhere, found in (
        (lambda: ["b", "x"], {**kept, "b": gone}),
        (list[str], kept),
        (None, {**kept, "a": gone, "b": gone}),
    ):
        assert assemble(last, 1, blocks, 1, 0, elsewhere)[0].record.positions == found


def planned(*, due: int | None, clock: int, spouts: int = 1) -> tuple[JobPlan, PlanAnswer]:
    wiring = Wiring().spout("spout", Numbered(1), spouts)
    topology = wiring.bolt("gather", Gather(), ("spout", "global")).build()
    plan = JobPlan(topology, JobSettings(partitions=4), "127.0.0.1:1", embedded=True)
    record = CommitRecord(job="j", kind="commit", epoch=1, batch=3, due=due)
    answer = PlanAnswer(record=record, begins={}, ends={}, latest={}, position=0, clock=clock)
    return plan, answer


@pytest.mark.parametrize(
    ("due", "clock", "happens", "soon"),
    [
        # Nothing was ever committed: spouts begin.
        (None, 1_000, True, True),
        (1_000, 1_000, True, True),
        (1_001, 1_000, False, True),
        (2_000, 1_000, False, False),
    ],
)
def test_a_batch_without_messages_happens_when_spouts_are_due(
    due: int | None, clock: int, happens: bool, soon: bool
) -> None:
    plan, answer = planned(due=due, clock=clock)
    assert (plan_batch(plan, answer, {}, 0, {}) is not None) is happens
    assert hurries(plan, answer, 100) is soon


@pytest.mark.parametrize(("spouts", "splits"), [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_the_first_stage_has_a_task_for_each_partition_with_a_spout(
    spouts: int, splits: int
) -> None:
    plan, _ = planned(due=None, clock=0, spouts=spouts)
    assert least_splits(plan) == splits
    made = make_splits({"a@b@0": (0, 9), "a@b@1": (0, 4)}, 4, splits)
    assert [(split.number, split.of) for split in made] == [(n, splits) for n in range(splits)]
    assert sum(len(part) for split in made for part in split.ranges) == 13
