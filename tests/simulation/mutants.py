"""Builds that are broken on purpose, which the simulation must find."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from headrace.broker.delays import DeliveryPlan, Scheduler
from headrace.broker.handlers import jobs as handlers
from headrace.broker.jobs import JobBook
from headrace.broker.naming import registry
from headrace.client import Producer, _connection
from headrace.client._consuming import ProcessQueue
from headrace.protocol.layout import record_starts
from headrace.protocol.transactions import StateSummary
from headrace.runtime import planning
from headrace.runtime.chunk import _BROKER_BITS, Marks
from headrace.runtime.commit.journal import publishing
from headrace.runtime.commit.journal.publishing import Publisher
from headrace.runtime.resident.channels import Frame, MemberChannel
from headrace.runtime.resident.gang import _Member
from headrace.runtime.state import local
from headrace.runtime.state.interface import ChangeSet
from headrace.runtime.state.local import LocalCopies, OpenCopies
from headrace.spark import driver as coordinator, source, standby
from headrace.store import MessageStore, QueueAppend, StageKey
from headrace.store.fileops import read_all
from headrace.store.log import CommitLog
from headrace.store.replication.copyist import ReplicaBook, Settled
from headrace.store.requests import UnitResult
from headrace.store.staging import _StagedFiles
from headrace.store.writer import Writer
from tests.without import without

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.jobs import JobState
    from headrace.client import SendResult
    from headrace.protocol.transactions import CommitRecord, PlanAnswer, PlanRequest
    from headrace.runtime.chunk import Int64s
    from headrace.store.staging import StagedRun
    from tests.simulation.simulation import Story


#: A broken build is found within so many seeds of the first that is tried.
_FOUND_WITHIN = 100


@dataclass(frozen=True)
class Mutant:
    """What is broken: nothing, by default."""

    name: str = ""
    #: Words of what is found.
    breaks: str = ""
    #: The first seed that is tried, best the first that finds it: `--mutants` tells which.
    since: int = 0
    #: Safeguards that are left out.
    without: str = ""
    #: Place and what is there instead.
    changes: tuple[tuple[object, str, object], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break it for a while."""
        with ExitStack() as stack:
            stack.enter_context(without(self.without))
            for place, name, instead in self.changes:
                stack.enter_context(patch.object(place, name, instead))
            yield


def find(mutant: Mutant, simulate: Callable[[int], Story]) -> Story:
    """Run seeds on a broken build until one finds it; fail where none of a hundred does."""
    for seed in range(mutant.since, mutant.since + _FOUND_WITHIN):
        story = simulate(seed)
        if story.wrong is not None and mutant.breaks in story.wrong:
            print(f"seed {seed}:\n{story}")
            return story
    raise AssertionError(f"{mutant.name}: nothing was found")


def _every_attempt(
    self: MessageStore, keys: Sequence[StageKey], extra: Sequence[QueueAppend] = ()
) -> Future[UnitResult]:
    """Publish every attempt that staged for a batch, not the ones that the commit names."""
    batches = {replace(key, attempt=0) for key in keys}
    staged = [key for key in self._staging._parts if replace(key, attempt=0) in batches]
    return _commit_unit(self, staged, extra)


def _write_at_once(
    self: OpenCopies,
    store: str,
    partition: int,
    attempt: tuple[int, int, int],
    base: StateSummary | None,
    changes: ChangeSet,
) -> None:
    """Write the changes of an attempt into an open copy, whether it is going to count or not."""
    _keep(self, store, partition, attempt, base, changes)
    database = self._databases.get(self._folder(store, partition))
    if database is not None:
        local._write(database, changes.keys, changes.values, None)


def _hurried(self: _Member, stage: int) -> None:
    """Go on when all tasks but one have sent what they have for a stage."""
    while len(self._barriers[self._batch, stage]) < self._place.tasks - 2:
        frame = self._mesh.next()
        assert frame is not None
        self._note(frame)
    self._barriers.pop((self._batch, stage), None)


def _forgetful(self: MemberChannel) -> list[Frame] | None:
    """Lose one frame of ten."""
    found = _take(self)
    self.dropped = count = getattr(self, "dropped", 0) + len(found or ())  # type: ignore[attr-defined]
    return found[:-1] if found and count % 10 < len(found) else found


def _without_the_first(core: Core, asked: PlanRequest, answer: PlanAnswer) -> dict[str, bytes]:
    """Leave out the first message of each queue from what a plan brings along."""
    found = _plan_messages(core, asked, answer)
    return {
        queue: block[int(starts[1]) :]
        for queue, block in found.items()
        if len(starts := record_starts(block)) > 1
    }


def _first_of_each_queue(appends: Iterable[QueueAppend]) -> list[QueueAppend]:
    """Keep one part for each queue."""
    return _joined({append.key: append for append in reversed(list(appends))}.values())


_append = handlers._append
_plan_messages = handlers._messages
_joined = handlers._joined
_keep = OpenCopies.save
_take = MemberChannel.take
_commit_unit = MessageStore.commit_unit
_save = LocalCopies.save


def _save_at_once(
    self: LocalCopies,
    store: str,
    partition: int,
    attempt: tuple[int, int, int],
    base: StateSummary | None,
    changes: ChangeSet,
) -> None:
    """Write the changes of an attempt into the copy, whether it is going to count or not."""
    _save(self, store, partition, attempt, base, changes)
    database = vars(local)["Rdict"](str(self._folder(store, partition) / "db"))
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is not None:
            database.put(key, value)
    database.close()


def _nothing(*_: object) -> None:
    """Do nothing."""


def _unchecked(self: _StagedFiles, run: StagedRun, target: memoryview) -> None:
    """Take staged bytes as the disk gives them."""
    if run.path not in self._fds:
        self._fds[run.path] = self._ops.open(run.path, os.O_RDONLY)
    content = read_all(self._ops, self._fds[run.path], run.size, run.offset)
    target[: len(content)] = content


def _not_now(self: Writer) -> None:
    """Take for synced what the system has."""
    self._sync_time = time.monotonic()


async def _read_back(
    core: Core,
    topic: str,
    record: CommitRecord,
    keys: list[StageKey],
    carried: list[QueueAppend],
    *,
    driver: str,
    owner: str,
) -> JobState:
    """Append a record, and learn from the log what was appended."""
    noted = core.jobs.recorded
    with patch.object(core.jobs, "recorded", _nothing):
        await _append(core, topic, record, keys, carried, driver=driver, owner=owner)
    state = handlers._restored(core, topic)
    assert state is not None
    noted(topic, state)
    return state


class _BlindProducer(Producer):
    """Sends again whatever was not answered."""

    def send_columns(self, *given: Any, once: bool = False, **more: Any) -> list[SendResult]:
        del once
        return super().send_columns(*given, **more)


def _of_one_broker(_: Marks, __: str, positions: Int64s) -> Int64s:
    """Give marks by positions alone."""
    return positions << _BROKER_BITS


def _believe(self: CommitLog, _: int) -> None:
    """Take what a file reads for what is on the disk."""
    self.synced = self.end


def _as_they_are(_: object, offsets: Mapping[str, int], __: object) -> dict[str, int]:
    """Go on where the last commit says, whatever the queues hold."""
    return dict(offsets)


_plan = Scheduler.plan


def _at_any_time(self: Scheduler, now: int, most: int) -> DeliveryPlan:
    """Deliver what is due within the next day."""
    return _plan(self, now + 86_400_000, most)


def _at_once(_: object, __: int, done: Callable[[Settled], None], *, now: float) -> None:
    """Take everything for replicated."""
    del now
    done(Settled.ENOUGH)


#: Broken builds over the embedded broker.
MUTANTS = (
    Mutant("an older epoch is not refused", "epoch", since=65, without="epoch"),
    Mutant("units have no marks", since=119, without="marks"),
    Mutant(
        "state of an attempt is written before its commit",
        changes=((LocalCopies, "save", _save_at_once),),
    ),
    Mutant(
        "every staged attempt counts",
        since=1,
        changes=((MessageStore, "commit_unit", _every_attempt),),
    ),
    Mutant(
        "a commit is answered before it is on disk", since=3, changes=((Writer, "sync", _not_now),)
    ),
    Mutant(
        "an answer goes to whichever request waits",
        since=1,
        changes=((_connection, "_LARGEST_OPAQUE", 1),),
    ),
    Mutant(
        "a standby does not wait for the lease",
        "has the lease",
        45,
        changes=((standby, "_is_free", lambda *_: True),),
    ),
    Mutant(
        "offsets are not held against their queues",
        since=9,
        changes=((planning, "held_offsets", _as_they_are), (source, "held_offsets", _as_they_are)),
    ),
    Mutant(
        "copies of another line are taken",
        "which does not count",
        since=59,
        changes=((local, "_on_lineage", lambda *_: True),),
    ),
    Mutant(
        "sums of copies are not compared",
        "is not that of",
        since=5459,
        changes=((local, "_agrees", lambda *_: True),),
    ),
    Mutant(
        "a change file fits any copy",
        "is not that of",
        since=128,
        changes=((local, "_base_name", lambda _: b""),),
    ),
    Mutant(
        "staged bytes are not checked", since=655, changes=((_StagedFiles, "read", _unchecked),)
    ),
    Mutant(
        "commits are not checked before they are appended",
        since=3,
        changes=((handlers, "check_commit", _nothing),),
    ),
    Mutant(
        "what was committed is learnt by reading it back",
        since=114,
        changes=((handlers, "_append", _read_back),),
    ),
    Mutant(
        "a batch may mix attempts",
        " lack",
        since=4784,
        changes=((coordinator, "_check_attempts", _nothing),),
    ),
    Mutant("what is left of a failed sync is believed", changes=((CommitLog, "settle", _believe),)),
    Mutant(
        "where a start goes on elsewhere is not committed",
        "not all is committed",
        since=21,
        changes=((source, "are_held", lambda *_: True),),
    ),
    Mutant(
        "a job begins anew where its newest commit is lost",
        "the newest commit is",
        since=19,
        changes=((JobBook, "lose", lambda self, topic, _: self.forget(topic)),),
    ),
    Mutant(
        "a group's offsets pass what is not done",
        since=279,
        changes=((ProcessQueue, "committable", property(lambda self: self.next_offset)),),
    ),
    Mutant(
        "keys of a name server are not kept",
        "key",
        since=10,
        changes=((registry, "save_snapshot", _nothing),),
    ),
    Mutant(
        "a delayed message does not wait",
        ", before ",
        since=3,
        changes=((Scheduler, "plan", _at_any_time),),
    ),
)

#: Broken builds over a broker with a follower, which stands in for the first.
REPLICA_MUTANTS = (
    Mutant(
        "an answer does not wait for the follower",
        "were acknowledged, and are lost",
        since=132,
        changes=((ReplicaBook, "wait", _at_once),),
    ),
)

#: Broken builds of resident tasks.
RESIDENT_MUTANTS = (
    Mutant(
        "an open copy has the changes of an attempt before its commit",
        changes=((OpenCopies, "save", _write_at_once),),
    ),
    Mutant(
        "a barrier is passed before all have sent",
        changes=((_Member, "_await_barriers", _hurried),),
    ),
    Mutant(
        "a plan brings along all messages of a queue but the first",
        changes=((handlers, "_messages", _without_the_first),),
    ),
    Mutant(
        "of parts that a commit carries the first one for each queue is kept",
        changes=((handlers, "_joined", _first_of_each_queue),),
    ),
    Mutant("a channel drops a frame", changes=((MemberChannel, "take", _forgetful),)),
    Mutant("resident: an older epoch is not refused", "epoch", since=79, without="epoch"),
)

#: Broken builds over RocketMQ.
JOURNAL_MUTANTS = (
    Mutant("published before the commit was read back", since=82, without="read_back,lease"),
    Mutant("the tail of target queues is not read", since=1, without="publish_tail"),
    Mutant(
        "tails are read before they show everything",
        since=509,
        changes=((Publisher, "_settle", _nothing),),
    ),
    Mutant(
        "the publisher retries blindly",
        since=117,
        changes=((publishing, "Producer", _BlindProducer),),
    ),
    Mutant(
        "positions do without their brokers", since=50, changes=((Marks, "of", _of_one_broker),)
    ),
    Mutant(
        "late repetitions are read as state, and not made up for",
        "not all is committed",
        since=1,
        without="first_copies,mend",
    ),
    Mutant("state that a late message hides is not written again", since=13, without="mend"),
    Mutant(
        "the tail is not read after a doubtful send",
        since=117,
        changes=((Publisher, "_arrived", lambda *_: 0),),
    ),
)
