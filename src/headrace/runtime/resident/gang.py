"""A gang: the tasks of one epoch, which run every stage of each batch, and their driver.

A batch begins with the driver's cut, and ends with the reports of all tasks; in between, tasks send
each other the blocks of each stage, and a barrier behind them.  A task that loses a channel ends,
and with it the gang: the driver begins a new epoch at the last commit.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.errors import ChannelError, HeadraceError
from headrace.failpoints import failpoint
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.planning import OffsetRange, Split
from headrace.runtime.resident.channels import (
    DRIVER,
    Address,
    Badge,
    Frame,
    FrameKind,
    Hello,
    MemberListener,
    Mesh,
    own_host,
    pack_block,
    unpack_block,
)
from headrace.runtime.user_code import describe_failure

if TYPE_CHECKING:
    from pathlib import Path

#: How long a gang may take to meet, s.
MEETING = 60.0
#: How long a report may wait for a driver that does not read, s.
_LAST_WORDS = 30.0


@dataclass(frozen=True, slots=True)
class GangPlace:
    """What every task of a gang is told before it connects."""

    epoch: int
    incarnation: int
    tasks: int
    partitions: int
    stages: int
    #: Where the driver listens.
    driver: str
    secret: bytes
    #: The last batch that was committed before.
    batch: int = 0
    #: A folder for sockets, where all of the gang is on one machine.
    folder: Path | None = None


class AssignedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """What a task reads of a batch."""

    #: The number of the split, and of how many.
    number: int
    of: int
    #: Queues, each with the first offset, the one after the last, and messages that are known.
    ranges: list[tuple[str, int, int, bytes]]
    ends: dict[str, int] | None
    #: The control of its first stage, as JSON.
    control: bytes
    #: In one reading of each batch: the control of the whole batch, which the task hands on.
    batch: bytes | None

    @classmethod
    def of_split(cls, split: Split, control: bytes, batch: bytes | None) -> AssignedSplit:
        """Return what a task is sent about a split."""
        return cls(
            number=split.number,
            of=split.of,
            ranges=[(part.queue, part.begin, part.end, part.messages) for part in split.ranges],
            ends=None if split.ends is None else dict(split.ends),
            control=control,
            batch=batch,
        )

    @property
    def split(self) -> Split:
        """The split that it was made from."""
        ranges = tuple(OffsetRange(*part) for part in self.ranges)
        return Split(self.number, self.of, ranges, self.ends)


class StageWork(Protocol):
    """Runs the stages of a job for a task; it gives blocks, a failure among them too."""

    def first(self, reading: AssignedSplit) -> Iterable[Block]:
        """Run the first stage on what the task reads."""

    def later(self, stage: int, blocks: Sequence[Block]) -> Iterable[Block]:
        """Run a later stage for one partition."""

    def ended(self) -> None:
        """Do what is to be done between batches."""

    def close(self) -> None:
        """Let go of what other processes may need."""


def serve(place: GangPlace, number: int, make_work: Callable[[], StageWork]) -> None:
    """Be one task of a gang until its driver ends it.

    Parameters
    ----------
    place
        The gang.
    number
        The task's number.
    make_work
        Returns what runs the stages; called once the gang has met.

    Raises
    ------
    ChannelError
        The driver or another task is gone.
    HeadraceError
        A stage failed; the driver was told.
    """
    mesh = Mesh(Badge(place.epoch, place.incarnation, number), place.secret)
    try:
        _join(mesh, place, number)
        try:
            with closing(make_work()) as work:
                _Member(place, number, mesh, work).run()
        except ChannelError:
            raise
        except HeadraceError as error:
            # Whatever the driver makes of it: this task has not done its part of the batch.
            mesh.send(DRIVER, FrameKind.FAILED, 0, 0, [describe_failure(error)])
            mesh.drain(time.monotonic() + _LAST_WORDS)
            raise
    finally:
        mesh.close()


def _join(mesh: Mesh, place: GangPlace, number: int) -> None:
    """Connect to the driver and to the other tasks."""
    until = time.monotonic() + MEETING
    driver = Address.parse(place.driver)
    listener = MemberListener(place.folder, own_host(driver))
    try:
        nonce = mesh.call(driver, DRIVER, listener.address.text())
        roster = msgspec.msgpack.decode(mesh.welcomed(DRIVER, nonce, until), type=list[str])
        for peer in range(number):
            nonce = mesh.call(Address.parse(roster[peer]), peer)
            mesh.welcomed(peer, nonce, until)
        while len(mesh.channels) < place.tasks:
            made = listener.accept(until - time.monotonic())
            if made is not None and (hello := mesh.admit(made)) is not None:
                mesh.welcome(hello, FrameKind.WELCOME)
            elif time.monotonic() > until:
                raise ChannelError(f"task {number} has waited for the other tasks in vain")
    finally:
        listener.close()


class _Member:
    """The batches of one task."""

    def __init__(self, place: GangPlace, number: int, mesh: Mesh, work: StageWork) -> None:
        self._place = place
        self._number = number
        self._mesh = mesh
        self._work = work
        self._batch = place.batch
        #: Blocks that have come, by batch, stage and partition; and who has sent all, by stage.
        self._blocks: dict[tuple[int, int, int], list[Block]] = defaultdict(list)
        self._barriers: dict[tuple[int, int], set[int]] = defaultdict(set)

    def run(self) -> None:
        """Run batches until the driver ends the gang."""
        while (frame := self._mesh.next()) is not None and frame.kind != FrameKind.STOP:
            if frame.kind != FrameKind.CUT:
                self._note(frame)
                continue
            self._run_batch(frame)

    def _run_batch(self, frame: Frame) -> None:
        place, mesh = self._place, self._mesh
        batch = self._batch = frame.batch
        for reading in msgspec.msgpack.decode(frame.payload, type=list[AssignedSplit]):
            self._hand_on(self._work.first(reading))
        for stage in range(1, place.stages):
            for peer in range(place.tasks):
                if peer != self._number:
                    mesh.send(peer, FrameKind.BARRIER, stage, batch)
            failpoint("resident.sent")
            self._await_barriers(stage)
            for partition in range(self._number, place.partitions, place.tasks):
                blocks = self._blocks.pop((batch, stage, partition), [])
                self._hand_on(self._work.later(stage, blocks))
        failpoint("resident.before_report")
        mesh.send(DRIVER, FrameKind.REPORT, 0, batch)
        mesh.drain(time.monotonic() + _LAST_WORDS)
        self._work.ended()

    def _await_barriers(self, stage: int) -> None:
        place = self._batch, stage
        while len(self._barriers[place]) < self._place.tasks - 1:
            frame = self._mesh.next()
            assert frame is not None
            if frame.kind == FrameKind.STOP:
                raise ChannelError("the driver has ended the gang")
            self._note(frame)
        del self._barriers[place]

    def _note(self, frame: Frame) -> None:
        """Keep what another task has sent for this batch, or for the next one."""
        if not self._batch <= frame.batch <= self._batch + 1 or frame.producer == DRIVER:
            raise ChannelError(
                f"a frame of batch {frame.batch} came in batch {self._batch}, from"
                f" {frame.producer}",
                hint="please report this with the logs of the driver and its workers",
            )
        if frame.kind == FrameKind.BLOCK:
            block = unpack_block(frame.stage, frame.payload)
            self._blocks[frame.batch, frame.stage, block.partition].append(block)
        elif frame.kind == FrameKind.BARRIER:
            self._barriers[frame.batch, frame.stage].add(frame.producer)
        else:
            raise ChannelError(f"a frame of kind {frame.kind} came, which tasks do not send")

    def _hand_on(self, blocks: Iterable[Block]) -> None:
        place, batch = self._place, self._batch
        for block in blocks:
            owner = DRIVER if block.stage == SUMMARY_STAGE else block.partition % place.tasks
            if owner == self._number:
                self._blocks[batch, block.stage, block.partition].append(block)
            else:
                parts = pack_block(block)
                self._mesh.send(owner, FrameKind.BLOCK, block.stage, batch, parts)


# The driver's side.

#: How often it looks whether the gang must end, or has, s.
_LOOK = 0.2
_GOODBYE = 1.0


class Gang:
    """The tasks of one epoch, as their driver sees them.

    Parameters
    ----------
    epoch
        The driver's epoch.
    listener
        Where tasks connect.
    tasks, partitions, stages
        How many there are of each.
    batch
        The last committed batch.
    folder
        A folder of the owner's for sockets, where all tasks run on this machine; else None.
    """

    def __init__(
        self,
        epoch: int,
        listener: MemberListener,
        *,
        tasks: int,
        partitions: int,
        stages: int,
        batch: int,
        folder: Path | None,
    ) -> None:
        self._listener = listener
        secret = secrets.token_bytes(32)
        #: What the tasks are told.
        self.place = GangPlace(
            epoch=epoch,
            incarnation=secrets.randbits(31),
            tasks=tasks,
            partitions=partitions,
            stages=stages,
            driver=listener.address.text(),
            secret=secret,
            batch=batch,
            folder=folder,
        )
        self._mesh = Mesh(Badge(epoch, self.place.incarnation, DRIVER), secret)
        #: The tasks that have come, by number.
        self.members: dict[int, Hello] = {}

    def gather(self, seconds: float, check: Callable[[], None]) -> None:
        """Wait until all tasks have connected, and tell each where the others are.

        Parameters
        ----------
        seconds
            How long to wait.
        check
            Called now and then; what it raises ends the wait.

        Raises
        ------
        ChannelError
            Some have not come.
        """
        until = time.monotonic() + seconds
        while len(self.members) < self.place.tasks:
            check()
            made = self._listener.accept(_LOOK)
            if made is not None and (hello := self._mesh.admit(made)) is not None:
                self.members[hello.number] = hello
            if time.monotonic() > until:
                raise ChannelError(
                    f"{self.place.tasks - len(self.members)} of {self.place.tasks} tasks have not"
                    f" connected to their driver within {seconds:g} s",
                    hint="can the machines of the workers reach the driver's?",
                )
        self._listener.close()
        roster = [self.members[number].address for number in range(self.place.tasks)]
        for hello in self.members.values():
            self._mesh.welcome(hello, FrameKind.ROSTER, msgspec.msgpack.encode(roster))

    def run(
        self, batch: int, readings: Sequence[AssignedSplit], check: Callable[[], None]
    ) -> list[Block]:
        """Run a batch and return the reports of its tasks.

        Parameters
        ----------
        batch
            Its number.
        readings
            What is read, shared out in turn; tasks without any only take part in later stages.
        check
            Called now and then; what it raises ends the wait.

        Raises
        ------
        ChannelError
            A task is gone.
        """
        try:
            return self._reports(batch, readings, check)
        except ChannelError as error:
            if (failure := self._failure()) is not None:
                return [failure]
            if (gone := self.gone) is not None:
                error.message += f" (process {gone.pid} on machine {gone.host})"
            raise

    def _reports(
        self, batch: int, readings: Sequence[AssignedSplit], check: Callable[[], None]
    ) -> list[Block]:
        mesh, tasks = self._mesh, self.place.tasks
        for number in range(tasks):
            cut = msgspec.msgpack.encode(readings[number::tasks])
            mesh.send(number, FrameKind.CUT, 0, batch, [cut])
        found: list[Block] = []
        missing = set(range(tasks))
        while missing:
            frame = mesh.next(time.monotonic() + _LOOK)
            if frame is None:
                check()
                continue
            if frame.kind == FrameKind.FAILED:
                return [_failure_of(frame)]
            if frame.kind not in (FrameKind.BLOCK, FrameKind.REPORT) or frame.batch != batch:
                raise ChannelError(
                    f"task {frame.producer} sent a frame of kind {frame.kind} for batch"
                    f" {frame.batch} in batch {batch}"
                )
            if frame.kind == FrameKind.BLOCK:
                found.append(unpack_block(frame.stage, frame.payload))
            else:
                missing.discard(frame.producer)
        return found

    def _failure(self) -> Block | None:
        """Return the failure of a task that has told it; others may have ended because of it."""
        mesh, until = self._mesh, time.monotonic() + _GOODBYE
        while mesh.gone is not None:
            for frame in mesh.frames:
                if frame.kind == FrameKind.FAILED:
                    return _failure_of(frame)
            if not mesh.channels or time.monotonic() > until:
                return None
            with suppress(ChannelError):
                mesh.pump(_LOOK)
        return None

    @property
    def gone(self) -> Hello | None:
        """The first task whose channel ended."""
        return None if self._mesh.gone is None else self.members[self._mesh.gone]

    def end(self) -> None:
        """Tell all tasks to end, and close the channels."""
        self._listener.close()
        for number in list(self._mesh.channels):
            try:
                self._mesh.send(number, FrameKind.STOP, 0, 0)
            except ChannelError:
                continue
        with suppress(ChannelError):
            self._mesh.drain(time.monotonic() + _GOODBYE)
        self._mesh.close()


def _failure_of(frame: Frame) -> Block:
    return Block(0, SUMMARY_STAGE, BlockKind.FAILURE, "", 0, frame.payload)
