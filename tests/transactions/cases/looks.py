"""What scenarios ask of a rig: where its user code fails, which requests matter, what readers see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.client import Client
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from tests.transactions.cases.evidence import committed_results
from tests.transactions.cases.rig import Process, Rig
from tests.transactions.cases.workload import BATCH

__all__ = ["await_true", "bolt_of", "calls_per_task", "is_commit", "is_stage", "visible"]

#: The bolt of each workload in which user code fails.
_BOLTS = {"set": "count", "bank": "debit", "seq": "seq", "example": "count"}
_RESTS = 0.05


def bolt_of(rig: Rig) -> str:
    return _BOLTS[rig.workload.name]


def visible(rig: Rig, batch: int) -> Iterator[str]:
    """Compare what a committed reader sees with the messages of the batches up to one."""
    if not rig.sink:
        return
    with Client(rig.address) as client:
        seen = {row["id"] for row in committed_results(client, rig.sink)}
    wanted = set(range(batch * BATCH))
    # On RocketMQ, what is committed may still have to be published, by whoever comes next.
    unpublished = set(range((batch - 1) * BATCH, batch * BATCH)) if rig.on_rocketmq else set()
    if not wanted - unpublished <= seen <= wanted:
        yield f"readers see {len(seen)} ids instead of those of batches 1 to {batch}"


def is_commit(rig: Rig) -> Callable[[Command], bool]:
    if not rig.on_rocketmq:
        return lambda command: command.code == RequestCode.COMMIT_BATCH
    topic = rig.topology.commit_topic
    return lambda command: command.ext.get("b") == topic and "commit" in command.ext.get("i", "")


def is_stage(rig: Rig) -> Callable[[Command], bool]:
    if not rig.on_rocketmq:
        return lambda command: command.code == RequestCode.STAGE
    return lambda command: str(command.ext.get("b", "")).endswith("-journalTopic")


def await_true(reached: Callable[[], bool], process: Process, patience: float = 240.0) -> None:
    deadline = time.monotonic() + patience
    while not reached():
        assert process.process.poll() is None, f"the driver ended:\n{process.said[-3000:]}"
        assert time.monotonic() < deadline, f"it did not come so far:\n{process.said[-3000:]}"
        time.sleep(_RESTS)


def calls_per_task(calls: Any, name: str, batch: int) -> Mapping[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for call in calls:
        if call.name == name and call.batch == batch:
            found[call.task] = found.get(call.task, 0) + 1
    return found
