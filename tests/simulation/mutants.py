"""Builds that are broken on purpose, which the simulation must find."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from headrace.broker import jobs
from headrace.broker.core import Core
from headrace.broker.handlers import jobs as handlers_jobs
from headrace.broker.jobs import JobState
from headrace.broker.settings import UNSAFE_VARIABLE, Guards
from headrace.client import _connection
from headrace.client.producer import AsyncProducer
from headrace.protocol.commit_log import record_key
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.commit.journal import topic
from headrace.runtime.commit.journal.publishing import Publisher
from headrace.runtime.commit.transactions import Ownership
from headrace.runtime.state import databases, local
from headrace.runtime.state.local import LocalCopies
from headrace.runtime.state.store import ChangeSet
from headrace.store import MessageStore, QueueAppend, StageKey
from headrace.store.log import CommitLog
from headrace.store.requests import UnitResult
from headrace.store.writer import Writer


@dataclass(frozen=True)
class Mutant:
    """What is broken: nothing, by default."""

    name: str = ""
    #: Words of what is found.
    breaks: str = ""
    #: The first seed that is tried, not far from the first that finds it.
    since: int = 0
    guards: Guards = Guards()  # noqa: RUF009 - frozen
    #: Safeguards of transactions on RocketMQ that are left out.
    unsafe: str = ""
    #: Place and what is there instead.
    changes: tuple[tuple[object, str, object], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break it for a while."""
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {UNSAFE_VARIABLE: self.unsafe}))
            for place, name, instead in self.changes:
                stack.enter_context(patch.object(place, name, instead))
            yield


def _every_attempt(
    self: MessageStore, keys: Sequence[StageKey], extra: Sequence[QueueAppend] = ()
) -> Future[UnitResult]:
    """Publish every attempt that staged for a batch, not the ones that the commit names."""
    batches = {replace(key, attempt=0) for key in keys}
    staged = [key for key in self._staging._parts if replace(key, attempt=0) in batches]
    return _commit_unit(self, staged, extra)


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
    database = vars(databases)["Rdict"](str(self._folder(store, partition) / "db"))
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is not None:
            database.put(key, value)
    database.close()


def _send_blindly(self: AsyncProducer, *given: Any, once: bool, **more: Any) -> Any:
    """Repeat what was not answered."""
    del once
    return _send_columns(self, *given, once=False, **more)


_send_columns = AsyncProducer.send_columns


async def _committed_unread(
    core: Core, topic: str, record: CommitRecord, driver: str, keys: list[StageKey]
) -> JobState:
    """Learn what was written by reading it, which may fail."""
    state = await _append(core, topic, record, driver, keys)
    core.store.read(topic, 0, core.store.bounds(topic, 0).max_offset - 1, 1)
    core.jobs.recorded(topic, state)
    return state


_append = handlers_jobs._append


def _nothing(*_: object) -> None:
    """Do nothing."""


@contextmanager
def _anybody(*_: object, **__: object) -> Iterator[None]:
    """Let two calls change a job beside each other."""
    yield


#: Broken builds over the embedded broker.
MUTANTS = (
    Mutant("an older epoch is not refused", "epoch", guards=Guards(epoch=False)),
    Mutant("a commit need not follow the last one", "", guards=Guards(predecessor=False)),
    Mutant("units have no marks", "", guards=Guards(marks=False)),
    Mutant(
        "state of an attempt is written before its commit",
        changes=((LocalCopies, "save", _save_at_once),),
    ),
    Mutant("every staged attempt counts", changes=((MessageStore, "commit_unit", _every_attempt),)),
    Mutant("a commit is answered before it is on disk", changes=((Writer, "sync", _nothing),)),
    Mutant(
        "an answer goes to whichever request waits", changes=((_connection, "_LARGEST_OPAQUE", 1),)
    ),
    Mutant("lineage is ignored", changes=((local, "_on_lineage", lambda *_: True),)),
    Mutant(
        "a change file is applied on any base", changes=((local, "_base_name", lambda _: b"any"),)
    ),
    Mutant("copies are never compared", changes=((local, "_agrees", lambda *_: True),)),
    Mutant(
        "what recovery finds is taken for written",
        changes=((CommitLog, "settle", lambda self, _: self.sync()),),
    ),
    Mutant(
        "a commit that was repeated is not known",
        changes=((jobs, "_same_commit", lambda *_: False),),
    ),
)

#: Broken builds over RocketMQ.
JOURNAL_MUTANTS = (
    Mutant("published before the commit was read back", "is sent, batch", unsafe="read_back,lease"),
    Mutant("the tail of target queues is not read", unsafe="publish_tail"),
    Mutant("state that a late message hides is not written again", unsafe="mend"),
    Mutant("nobody asks for the lease", unsafe="lease"),
    Mutant("late repetitions of state count", unsafe="first_copies"),
    Mutant(
        "the tail is not read after a doubtful send",
        changes=((Publisher, "_arrived", lambda *_: 0),),
    ),
    Mutant(
        "the publisher tries again blindly",
        changes=((AsyncProducer, "send_columns", _send_blindly),),
    ),
    Mutant(
        "a batch function that is late goes on beside the next epoch",
        changes=(
            (Ownership, "used_by", _anybody),
            (Ownership, "taken_over", _anybody),
            (Ownership, "check", _nothing),
        ),
    ),
    Mutant("no settling before tails are read", changes=((Publisher, "_settle", _nothing),)),
    Mutant(
        "an append is repeated under its first key",
        changes=((topic, "record_key", lambda record, _: record_key(record)),),
    ),
)
