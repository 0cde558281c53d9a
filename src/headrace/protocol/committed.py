"""Which messages of a queue are committed, and which are there a second time.

On RocketMQ a job publishes a batch message by message, each with a tag, after its commit record
stands in the commit topic.  Pure rules: tags and commit records in, what to give out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow.compute as pc

from headrace.protocol.journal_tags import FirstCopies, TagColumns

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CommitHead", "CommittedBatches", "CommittedMessages", "Judged"]


class CommitHead(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a commit record as says what is committed."""

    epoch: int
    batch: int


class CommittedBatches:
    """The last committed batch of a job, by its commit topic, read from any offset on.

    A record counts unless one of a higher epoch stands before it.  That is all that has to be
    looked at here: an *open* repeats a commit that counts, also when it lost to another one, and
    its driver commits nothing then.

    Examples
    --------
    >>> batches = CommittedBatches()
    >>> for epoch, batch in [(1, 7), (2, 7), (1, 8)]:
    ...     batches.feed(CommitHead(epoch=epoch, batch=batch))
    >>> batches.last
    7
    """

    def __init__(self) -> None:
        #: The last committed batch, 0 before the first.
        self.last = 0
        self._epoch = 0

    def feed(self, record: CommitHead) -> None:
        """Take the next record of the topic."""
        if record.epoch >= self._epoch:
            self._epoch = record.epoch
            self.last = max(self.last, record.batch)


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of a run of messages."""

    #: Which of the first messages to give out; about those behind them nothing is known yet.
    keep: npt.NDArray[np.bool_]
    #: Job and batch whose commit the next message waits for; None: all are judged.
    waits_for: tuple[str, int] | None = None


class CommittedMessages:
    """Judges the messages of one queue, from one place on, in their order.

    A message with a tag is given out once, and not before its batch is committed.  Messages
    behind one that waits wait, too: the order of a queue stays.  Messages without a tag pass.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from headrace.protocol.journal_tags import parse_tags
    >>> queue = CommittedMessages()
    >>> tags = parse_tags(pa.array([b"j:1:0", None, b"j:1:0", b"j:2:0"]))
    >>> judged = queue.judge(tags, {"j": 1})
    >>> judged.keep.tolist(), judged.waits_for
    ([True, True, False], ('j', 2))
    """

    def __init__(self) -> None:
        self._copies = FirstCopies()

    def saw(self, tags: TagColumns) -> None:
        """Take note of messages that stand before the place where reading begins."""
        self._copies.among(tags)

    def judge(self, tags: TagColumns, committed: Mapping[str, int]) -> Judged:
        """Say what becomes of the messages that come next.

        Those that wait must be asked about again: they are not taken note of.

        Parameters
        ----------
        tags
            Of each message.
        committed
            The last batch of each job that is known to be committed.
        """
        count, waits_for = len(tags), None
        for job in pc.unique(tags.job).drop_null().to_pylist():
            open_ = np.flatnonzero(tags.of(job) & (tags.batch > committed.get(job, 0)))
            if len(open_) and open_[0] < count:
                count = int(open_[0])
                waits_for = (str(job), int(tags.batch[count]))
        decided = TagColumns(tags.job.slice(0, count), tags.batch[:count], tags.sequence[:count])
        return Judged(self._copies.among(decided), waits_for)
