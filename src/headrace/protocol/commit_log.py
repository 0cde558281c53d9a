"""The rule of the commit log: which records of a commit topic count, by their order alone.

RocketMQ has no compare-and-set.  Anybody may append a record; whether it counts follows from what
stands before it, so everybody who reads the topic comes to the same answer.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.protocol.transactions import CommitRecord


#: Commit records of an epoch that compaction keeps.
_KEPT = 64


class Verdict(enum.Enum):
    """What a record of the commit topic is worth."""

    #: It counts.
    VALID = "valid"
    #: It was here before, or a later one was: a lost answer made somebody send it again.
    REPEATED = "repeated"
    #: Its sender was too late: somebody else had opened an epoch.
    VOID = "void"


def record_key(record: CommitRecord, attempt: int = 0) -> str:
    """Name what a record may replace when the topic is compacted.

    No record has the key of one that could count in its place: nothing is appended twice under one
    key, and of an epoch's commits the latest 64 are kept.

    Parameters
    ----------
    attempt
        How many appends of the driver were not answered before.

    Examples
    --------
    >>> from headrace.protocol.transactions import CommitRecord
    >>> record_key(CommitRecord(job="j", kind="commit", epoch=3, batch=70))
    '3-commit-6'
    >>> record_key(CommitRecord(job="j", kind="open", epoch=4, batch=70, driver="host:1"), 2)
    '4-open-host:1-2'
    """
    again = f"-{attempt}" if attempt else ""
    match record.kind:
        case "open":
            return f"{record.epoch}-open-{record.driver}{again}"
        case "commit":
            return f"{record.epoch}-commit-{record.batch % _KEPT}{again}"
    return f"{record.epoch}-{record.kind}{again}"


def newest_known(records: Iterable[CommitRecord | None]) -> int:
    """Return the offset of the newest record that others are known to stand on; -1: of none.

    Compaction never takes it out, nor any that matters behind it.
    """
    return max((record.stands_on for record in records if record is not None), default=0) - 1


class CommitReader:
    """Says what counts of a commit topic that is read from its first record on.

    Or from any record that counts: each record names one, see ``CommitRecord.stands_on``.

    * An *open* counts when its epoch is the next one and it builds on the last batch: the first
      driver that appends it wins.
    * A *commit* counts when its epoch is the newest, its driver the one that opened it, and its
      batch the next one.
    * A *close* of the newest epoch says that its driver has ended in order.

    Compaction takes commits out: where records are missing, a commit of the newest epoch with a
    higher batch counts too, as it was appended on top of them.  It takes out all records of old
    epochs, some sooner than others: a record that stands on a newer one than was read here
    replaces what was concluded from what was left.

    Examples
    --------
    >>> from headrace.protocol.transactions import CommitRecord
    >>> log = CommitReader()
    >>> log.feed(0, CommitRecord(job="j", kind="open", epoch=1, batch=0, driver="a")).value
    'valid'
    >>> log.feed(1, CommitRecord(job="j", kind="open", epoch=1, batch=0, driver="b")).value
    'void'
    >>> log.feed(2, CommitRecord(job="j", kind="commit", epoch=1, batch=1, driver="a")).value
    'valid'
    >>> log.epoch, log.batch, log.driver, log.closed
    (1, 1, 'a', False)
    """

    def __init__(self) -> None:
        #: The newest record that counts; None before the first.
        self.record: CommitRecord | None = None
        #: Offset behind the last record that was read, and behind the newest one that counts.
        self.next_offset = self.stands_on = 0
        #: Whether the newest epoch's driver has ended in order.
        self.closed = False
        #: Who opened the newest epoch; empty where that is unknown.
        self.driver = ""

    @property
    def epoch(self) -> int:
        """The newest epoch, 0 before the first."""
        return 0 if self.record is None else self.record.epoch

    @property
    def batch(self) -> int:
        """The last committed batch, 0 before the first."""
        return 0 if self.record is None else self.record.batch

    def feed(self, offset: int, record: CommitRecord, *, counts: bool = False) -> Verdict:
        """Take the next record of the topic, in the order of offsets.

        Parameters
        ----------
        counts
            Others stand on it, so it counts, whatever was read before it.
        """
        if offset < self.next_offset:
            return Verdict.REPEATED
        hole = offset > self.next_offset
        self.next_offset = offset + 1
        newer = self.stands_on < record.stands_on <= offset and record.epoch >= self.epoch
        counts = counts or newer
        verdict = Verdict.VALID if counts else self._judge(record, hole=hole)
        if verdict is Verdict.VALID:
            self.driver = record.driver
            self.record = record
            self.stands_on = offset + 1
            self.closed = record.kind == "close"
        return verdict

    def skip(self, offset: int) -> None:
        """Take note of a message that is no record, in the order of offsets."""
        if offset == self.next_offset:
            self.next_offset += 1

    def _judge(self, record: CommitRecord, *, hole: bool) -> Verdict:
        if record.kind == "open":
            return self._judge_open(record, hole=hole)
        if record.epoch > self.epoch:
            return Verdict.VALID if hole else Verdict.VOID
        if record.epoch < self.epoch or record.driver != self.driver:
            return Verdict.VOID
        if record.kind == "close":
            return Verdict.REPEATED if self.closed else Verdict.VALID
        if record.batch <= self.batch:
            return Verdict.REPEATED
        follows = hole or record.batch == self.batch + 1
        return Verdict.VALID if follows and not self.closed else Verdict.VOID

    def _judge_open(self, record: CommitRecord, *, hole: bool) -> Verdict:
        if record.epoch == self.epoch and record.driver == self.driver:
            return Verdict.REPEATED
        if hole and self.record is None:
            return Verdict.VALID
        # One that was written before the last commit came would take it back.
        builds = record.batch == self.batch or (hole and record.batch > self.batch)
        return Verdict.VALID if builds and record.epoch == self.epoch + 1 else Verdict.VOID
