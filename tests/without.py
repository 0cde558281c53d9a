"""The product without one of its safeguards: what each is for shows where it is gone.

The product itself knows of no switch.  :func:`without` changes this process, and one that is started
with :func:`going_without` in its environment changes itself first (``site/sitecustomize.py``).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from headrace.broker import jobs as job_book
from headrace.broker.handlers import jobs as job_requests
from headrace.broker.jobs import JobBook
from headrace.protocol.journal_tags import FirstCopies, TagColumns
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.commit.journal.lease import DriverLease
from headrace.runtime.commit.journal.publishing import Publisher
from headrace.runtime.commit.journal.transactions import JournalTransactions
from headrace.runtime.state import home
from headrace.store import MessageStore, StageKey, StoreSettings

__all__ = ["VARIABLE", "go_without", "going_without", "without"]

VARIABLE = "TESTS_WITHOUT"
_TESTS = Path(__file__).parent


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def _own_only(transactions: JournalTransactions) -> None:
    transactions._owner.check()


def _of_any_epoch(record: CommitRecord, key: StageKey) -> bool:
    return key.batch > record.batch


def _none_sent(_: Publisher, __: CommitRecord, queues: Collection[str]) -> dict[str, int]:
    return dict.fromkeys(queues, 0)


def _open_unmarked(
    kind: type[MessageStore],
    path: Path,
    settings: StoreSettings | None = None,
    *more: Any,
    **named: Any,
) -> MessageStore:
    settings = replace(settings or StoreSettings(), unit_marks=False)
    found: MessageStore = _opened(kind, path, settings, *more, **named)
    return found


#: As it is before anything is taken away.
_opened = MessageStore.open.__func__  # type: ignore[attr-defined]


class _AllCopies(FirstCopies):
    def among(self, tags: TagColumns) -> np.ndarray:
        return np.ones(len(tags), bool)


Change = tuple[object, str, object]

#: By name: the place, and what is there instead.
_GUARDS: Mapping[str, tuple[Change, ...]] = {
    # Of the embedded broker: it refuses what an older epoch still tries,
    "epoch": (
        (JobBook, "_check_epoch", _nothing),
        (JobBook, "_check_not_replaced", _nothing),
        (job_requests, "_is_needed", _of_any_epoch),
    ),
    # and a commit that does not build on the last one;
    "predecessor": (
        (job_book, "_check_follows", _nothing),
        (job_book, "_check_is_next", _nothing),
    ),
    # marks frame a commit, so that recovery cuts an unfinished one.
    "marks": ((MessageStore, "open", classmethod(_open_unmarked)),),
    # On RocketMQ: after a doubt target queues are looked at before the rest is sent;
    "publish_tail": (
        (Publisher, "_sent_before", _none_sent),
        (Publisher, "_arrived", lambda *_: 0),
    ),
    # the commit topic is read back to a record before anybody acts on it;
    "read_back": ((JournalTransactions, "_check_epoch", _nothing),),
    # a driver waits until the one before it has stopped, and stops before it may have;
    "lease": (
        (DriverLease, "take", _nothing),
        (JournalTransactions, "_check_lease", _own_only),
    ),
    # late repetitions are left out where state is read,
    "first_copies": ((home, "FirstCopies", _AllCopies),),
    # and written over where they would hide state from compaction.
    "mend": ((Publisher, "mend", _nothing),),
}


def going_without(*names: str) -> dict[str, str]:
    """Give the variables by which a process goes without safeguards."""
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(_TESTS / "site"), str(_TESTS.parent), before)))
    return {VARIABLE: ",".join(names), "PYTHONPATH": path}


def go_without(names: str) -> None:
    """Take safeguards away until this process ends."""
    _for_good.enter_context(without(names))


_for_good = ExitStack()


@contextmanager
def without(names: str) -> Iterator[None]:
    """Take safeguards away for a while, by names with commas between them."""
    with ExitStack() as stack:
        for name in filter(None, names.split(",")):
            for place, attribute, instead in _GUARDS[name]:
                stack.enter_context(patch.object(place, attribute, instead))
        yield
