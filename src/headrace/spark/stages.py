"""Stages behind a shuffle, as functions for ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.runtime.blocks import Block, BlockKind
from headrace.runtime.control import Control
from headrace.runtime.marks import Marks
from headrace.runtime.task import guarded
from headrace.spark.rows import blocks_of, rows_of
from headrace.spark.worker import (
    RemoteFinder,
    connection,
    end_of_task,
    limited,
    make_task,
)

if TYPE_CHECKING:
    from headrace.spark.plans import PlanHandle

__all__ = ["stage_function"]

StageFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stage_function(handle: PlanHandle, stage: int) -> StageFunction:
    """Make the function that runs one stage for the partition that Spark hands it."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own: list[Block] = []
        control: Block | None = None
        passing: list[Block] = []
        for batch in batches:
            for block in blocks_of(batch):
                if block.stage != stage:
                    passing.append(block)
                elif block.kind is BlockKind.CONTROL:
                    control = block
                else:
                    own.append(block)
        if control is not None:
            passing += guarded(control.partition, _runner(handle, stage, control, own))
        yield rows_of(passing)
        end_of_task()

    return run


def _runner(
    handle: PlanHandle, stage: int, message: Block, blocks: list[Block]
) -> Callable[[], Iterable[Block]]:
    def run() -> Iterable[Block]:
        job = connection(handle)
        control = msgspec.json.decode(message.payload, type=Control)
        finder = RemoteFinder(job.client, Marks(control.brokers))
        with limited(job, control, message.partition):
            task = make_task(job, control, stage, message.partition, finder)
            try:
                task.absorb(blocks)
                return list(task.finish())
            finally:
                task.close()

    return run
