"""What the driver tells the tasks of a batch, and what they tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.protocol.transactions import Position, QueueName, StagedPart, StateSummary
from headrace.runtime.blocks import Block, BlockKind
from headrace.runtime.chunk import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Control", "Summary", "control_blocks", "place_of"]


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of a batch must know; made from the commit that the batch builds on."""

    job: str
    #: First epoch of the driver's life; 0: this one.
    life: int = 0
    epoch: int
    batch: int
    partitions: int
    #: Wall clock of the batch, and of the one before, ms since 1970.
    clock: int
    clock_before: int = NEVER
    #: Writable queues of every sink and state topic, in order.
    queues: dict[str, list[QueueName]]
    #: Brokers that hold the source queues.
    brokers: list[str] = []
    #: State stores as of the last commit: of all partitions in stage 0, of one after it.
    states: list[StateSummary] = []
    lineage: list[list[int]] = []
    #: Every source and queue, and every clock of an operator's own, where some operator is timed.
    origins: list[str] = []
    #: Watermarks as of the last commit, by origin.
    watermarks: dict[str, int] = {}
    #: Origins that have been silent for too long.
    idle: list[str] = []
    #: How far event time had come for each timed operator.
    progress: dict[str, int] = {}
    #: How far ahead of its store time a record may move watermarks, where its source does not
    #: say, ms; None: any.
    max_future: int | None = None
    #: Since when each origin has been silent, ms since 1970; for the first stage only.
    seen: dict[str, int] = {}
    #: Watermarks that the first split announces, by the operator that writes a topic of the
    #: job's own; for the first stage only.
    announced: dict[str, int] = {}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did, for the driver to commit."""

    part: StagedPart
    states: list[StateSummary] = []
    #: Ends of queues that the next batch reads, where something was sent there at once.
    sent: dict[QueueName, int] = {}
    #: Records that reached each operator of the stage.
    records: dict[str, int] = {}
    #: Records that each operator gave.
    given: dict[str, int] = {}
    counters: dict[str, int] = {}
    #: Tuples that it sent to each port of a bolt over a shuffle, and those that it took there.
    tuples_sent: dict[str, int] = {}
    tuples_taken: dict[str, int] = {}
    #: Blocks that it made for each task of a later stage (see :func:`place_of`), and those that it
    #: took, by the attempt that made them.
    blocks_sent: dict[str, int] = {}
    blocks_taken: dict[int, int] = {}
    #: Where outside systems are read to behind the batch, or what they were handed, by partition.
    positions: dict[str, Position] = {}
    #: Of the first split only: splits of the batch, and where the batch ends, by queue.
    splits: int = 0
    ends: dict[QueueName, int] | None = None
    #: Of the first split only: since when each origin had been silent when the batch began.
    seen: dict[str, int] | None = None
    #: Of the first split only: origins that had been silent for too long when the batch began.
    idle: list[str] = []
    #: Wall clock of the batch, ms since 1970.
    clock: int = 0
    #: When an operator wants a batch by the wall clock, ms since 1970.
    due: int | None = None
    #: Event-time watermarks that the task moved, by origin.
    watermarks: dict[str, int] = {}
    #: How far event time came for each timed operator of the stage.
    progress: dict[str, int] = {}


def place_of(stage: int, partition: int) -> str:
    """Name a task of a batch, whichever attempt of it counts."""
    return f"{stage}:{partition}"


def control_blocks(control: Control, stages: int) -> Iterator[Block]:
    """Tell every partition of every stage but the first about the batch."""
    for stage in range(1, stages):
        for partition in range(control.partitions):
            own = [state for state in control.states if state.partition == partition]
            shown = msgspec.structs.replace(control, states=own, seen={}, announced={})
            payload = msgspec.json.encode(shown)
            yield Block(partition, stage, BlockKind.CONTROL, "", 0, payload)
