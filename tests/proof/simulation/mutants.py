"""Builds that are broken on purpose: what the simulation must find."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from headrace.broker.settings import UNSAFE_VARIABLE, Guards
from headrace.client import _connection
from headrace.protocol.transactions import StateSummary
from headrace.runtime.state import local
from headrace.runtime.state.local import LocalCopies
from headrace.runtime.state.store import ChangeSet
from tests.proof.simulation.broker import SimulatedBroker
from tests.proof.simulation.disk import SimulatedDatabase, SimulatedDisk


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
    database = _open_again(self, store, partition)
    for key, value in zip(changes.keys, changes.values, strict=True):
        if value is not None:
            database.put(key, value)
    database.close()


def _open_again(self: LocalCopies, store: str, partition: int) -> SimulatedDatabase:
    path = self._folder(store, partition) / "db"
    disk: SimulatedDisk = vars(local)["open_database"].__self__
    disk.locked.discard(path)
    return disk.open(path)


def _every_attempt(self: SimulatedBroker, record: Any, part: Any) -> None:
    """Publish every attempt that staged for a batch, not the one that the commit names."""
    named = (record.job, record.epoch, record.batch, part.stage, part.partition)
    for key in sorted(key for key in self._staged if key[:5] == named):
        self._publish_chunks(self._staged.pop(key))


def _forgetful(self: SimulatedBroker) -> None:
    """Come back without the last commit, which was answered before it was on disk."""
    _restart(self)
    for topic, state in list(self._book.items()):
        queue = self.topics[topic][0]
        if state.record.kind == "commit" and len(queue.records) > 1:
            queue.records.pop()
            self._take_note(topic)


_restart = SimulatedBroker.restart

MUTANTS = (
    Mutant("an older epoch is not refused", "though epoch", 0, Guards(epoch=False)),
    Mutant(
        "a commit need not follow the last one", "comes after batch", 60, Guards(predecessor=False)
    ),
    Mutant(
        "neither epoch nor predecessor is looked at",
        "though epoch",
        0,
        Guards(epoch=False, predecessor=False),
    ),
    Mutant(
        "state of an attempt is written before its commit",
        "count ",
        55,
        changes=((LocalCopies, "save", _save_at_once),),
    ),
    Mutant(
        "every staged attempt counts",
        "visible twice",
        1,
        changes=((SimulatedBroker, "_publish", _every_attempt),),
    ),
    Mutant(
        "a commit is answered before it is on disk",
        "PredecessorMismatchError",
        changes=((SimulatedBroker, "restart", _forgetful),),
    ),
    Mutant(
        "an answer goes to whichever request waits",
        "ProtocolError",
        120,
        changes=((_connection, "_LARGEST_OPAQUE", 1),),
    ),
)

JOURNAL_MUTANTS = (
    Mutant(
        "published before the commit was read back",
        "PredecessorMismatchError",
        unsafe="read_back",
    ),
    Mutant("the tail of target queues is not read", "there twice", unsafe="publish_tail"),
    Mutant(
        "state that a late message hides is not written again",
        "compaction would lose",
        unsafe="mend",
    ),
    Mutant("nobody asks for the lease", "there twice", 60, unsafe="lease"),
)
