"""Gangs without Spark: tasks in threads, and their driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ChannelError, RequestTimeoutError, UserCodeError
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.resident.channels import FrameKind, MemberListener, Mesh
from headrace.runtime.resident.gang import AssignedSplit, Gang, serve
from headrace.runtime.user_code import raise_failure

PARTITIONS, STAGES = 4, 3


@dataclass
class Relay:
    """Sends each partition of each stage on what has come for it, and reports what there is at the end."""

    number: int
    fails: Exception | None = None
    ends: Callable[[], None] = lambda: None
    splits: list[int] = field(default_factory=list)
    closed: bool = False

    def first(self, reading: AssignedSplit) -> Iterator[Block]:
        if self.fails is not None:
            raise self.fails
        self.splits.append(reading.number)
        for stage in range(1, STAGES):
            for partition in range(PARTITIONS):
                yield block(partition, stage, f"{reading.number}>{stage}")

    def later(self, stage: int, blocks: Sequence[Block]) -> Iterator[Block]:
        told = ",".join(sorted(each.payload.decode() for each in blocks))
        assert {each.stage for each in blocks} <= {stage}
        if stage + 1 < STAGES:
            for partition in range(PARTITIONS):
                yield block(partition, stage + 1, f"({told})")
        else:
            yield block(self.number, SUMMARY_STAGE, told)

    def ended(self) -> None:
        self.ends()

    def close(self) -> None:
        self.closed = True


def block(partition: int, stage: int, text: str) -> Block:
    return Block(partition, stage, BlockKind.RECORDS, "", 0, text.encode())


def reading(number: int, of: int) -> AssignedSplit:
    return AssignedSplit(number=number, of=of, ranges=[], ends=None, control=b"", batch=None)


@contextmanager
def gang_of(folder: Path, works: Sequence[Relay], batch: int = 0) -> Iterator[Gang]:
    gang = Gang(
        3,
        MemberListener(folder),
        tasks=len(works),
        partitions=PARTITIONS,
        stages=STAGES,
        batch=batch,
        folder=folder,
    )

    def run(work: Relay) -> None:
        with suppress(Exception):
            serve(gang.place, work.number, lambda: work)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        gang.gather(10, lambda: None)
        yield gang
    finally:
        gang.end()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert all(work.closed for work in works)


def outcome(blocks: Iterable[Block]) -> list[str]:
    return sorted(each.payload.decode() for each in blocks)


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_what_comes_out_does_not_depend_on_the_number_of_tasks(
    tasks: int, splits: int, tmp_path: Path
) -> None:
    works = [Relay(number) for number in range(tasks)]
    readings = [reading(number, splits) for number in range(splits)]
    with gang_of(tmp_path, works) as gang:
        first, second = (outcome(gang.run(batch, readings, lambda: None)) for batch in (1, 2))
    ones = ",".join(f"{number}>1" for number in range(splits))
    twos = ",".join(f"{number}>2" for number in range(splits))
    assert first == second == [",".join([f"({ones})"] * PARTITIONS) + f",{twos}"] * PARTITIONS
    assert sorted(split for work in works for split in work.splits) == sorted([*range(splits)] * 2)


def test_what_a_faster_task_sends_before_the_cut_has_come_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Mesh.send

    def late(mesh: Mesh, number: int, kind: FrameKind, *given: Any) -> None:
        if kind == FrameKind.CUT and number == 1:
            time.sleep(0.1)
        send(mesh, number, kind, *given)

    monkeypatch.setattr(Mesh, "send", late)
    with gang_of(tmp_path, [Relay(0), Relay(1)], batch=500) as gang:
        found = outcome(gang.run(501, [reading(0, 1)], lambda: None))
    assert found == [",".join(["(0>1)"] * PARTITIONS) + ",0>2"] * PARTITIONS


@pytest.mark.parametrize("error", [UserCodeError("wrong"), RequestTimeoutError("slow")])
def test_an_error_of_a_task_reaches_the_driver_as_it_was(error: Exception, tmp_path: Path) -> None:
    works = [Relay(0), Relay(1, fails=error)]
    with gang_of(tmp_path, works) as gang:
        (found,) = gang.run(1, [reading(0, 2), reading(1, 2)], lambda: None)
        assert found.kind is BlockKind.FAILURE
        with pytest.raises(type(error), match=str(error)):
            raise_failure(found.payload)


def test_the_end_of_a_task_ends_the_batch_and_is_known_by_name(tmp_path: Path) -> None:
    works = [Relay(0), Relay(1, fails=ZeroDivisionError())]
    with gang_of(tmp_path, works) as gang:
        with pytest.raises(ChannelError, match=r"task [01] has gone"):
            gang.run(1, [reading(0, 2), reading(1, 2)], lambda: None)
        assert gang.gone is not None


def test_tasks_that_do_not_come_are_counted(tmp_path: Path) -> None:
    gang = Gang(
        3, MemberListener(tmp_path), tasks=2, partitions=2, stages=1, batch=0, folder=tmp_path
    )
    with pytest.raises(ChannelError, match="2 of 2 tasks have not connected"):
        gang.gather(0.01, lambda: None)
    gang.end()
