"""Tags: which message of which batch a published message is.

On RocketMQ each message that a job publishes has the property ``TX``, ``job:batch:sequence``,
where the sequence counts the messages of the batch for one queue.  A queue gets them in order, so
whoever reads it knows a repetition: it is not above what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from headrace.protocol.layout import Int64s


TAG = "TX"
"""Name of the property."""

_FORM = r"^(?P<job>[^:]+):(?P<batch>[0-9]{1,10}):(?P<sequence>[0-9]{1,10})$"
_SEQUENCE_BITS = 32


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """One message of one batch, for one queue.

    Examples
    --------
    >>> str(Tag("word-count", 7, 0))
    'word-count:7:0'
    """

    job: str
    batch: int
    #: Place among the messages of the batch for the queue, from 0.
    sequence: int

    def __str__(self) -> str:
        return f"{self.job}:{self.batch}:{self.sequence}"


def parse_tag(text: str | None) -> Tag | None:
    """Read the property of one message; None where it is not a tag.

    Examples
    --------
    >>> parse_tag("word-count:7:12")
    Tag(job='word-count', batch=7, sequence=12)
    >>> parse_tag("mine") is parse_tag(None) is None
    True
    """
    job, *numbers = (text or "").split(":")
    if not job or len(numbers) != 2 or not all(_is_number(number) for number in numbers):
        return None
    return Tag(job, int(numbers[0]), int(numbers[1]))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def encode_tags(
    properties: pa.BinaryArray | None, job: str, batch: int, first: int, count: int
) -> pa.BinaryArray:
    r"""Append tags to raw properties strings, with sequences from ``first`` on.

    Parameters
    ----------
    properties
        As the wire has them, ``name \x01 value \x02`` repeated; None: no message has any.
    count
        Number of messages.

    Examples
    --------
    >>> encode_tags(pa.array([b"KEYS\x01k\x02", b""]), "j", 3, 5, 2).to_pylist()
    [b'KEYS\x01k\x02TX\x01j:3:5\x02', b'TX\x01j:3:6\x02']
    """
    numbers = pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())
    head = pa.scalar(f"{TAG}\1{job}:{batch}:".encode())
    pieces = [head, numbers, pa.scalar(b"\2")]
    if properties is not None:
        pieces.insert(0, properties)
    return pc.binary_join_element_wise(*pieces, pa.scalar(b""))


@dataclass(frozen=True, slots=True)
class TagColumns:
    """The tags of many messages."""

    #: Null where a message has no tag.
    job: pa.StringArray
    #: -1 where a message has no tag.
    batch: Int64s
    sequence: Int64s

    def __len__(self) -> int:
        return len(self.batch)

    def of(self, job: str) -> npt.NDArray[np.bool_]:
        """Return which messages have a tag of a job."""
        found = pc.fill_null(pc.equal(self.job, job), fill_value=False)
        return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def parse_tags(column: pa.BinaryArray) -> TagColumns:
    """Read the property of many messages, null where a message lacks it.

    Examples
    --------
    >>> tags = parse_tags(pa.array([b"j:3:5", None, b"other"]))
    >>> tags.job.to_pylist(), tags.batch.tolist(), tags.sequence.tolist()
    (['j', None, None], [3, -1, -1], [5, -1, -1])
    """
    if column.null_count == len(column):
        none = np.full(len(column), -1, np.int64)
        return TagColumns(pa.nulls(len(column), pa.string()), none, none)
    found = pc.extract_regex(column.cast(pa.binary()), _FORM)
    job, batch, sequence = found.flatten()
    return TagColumns(job.cast(pa.string()), _numbers(batch), _numbers(sequence))


def _numbers(column: pa.BinaryArray) -> Int64s:
    numbers = pc.fill_null(column.cast(pa.string()).cast(pa.int64()), -1)
    return np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)


class FirstCopies:
    """Filter that tells the messages of one queue from late repetitions of them.

    A message is a repetition when its batch and sequence are not above the highest before it in
    the queue, of the same job.  Messages without a tag are never repetitions.

    Examples
    --------
    >>> queue = FirstCopies()
    >>> queue.among(parse_tags(pa.array([b"j:3:0", b"j:3:1", b"j:3:0", b"j:4:0"]))).tolist()
    [True, True, False, True]
    >>> queue.among(parse_tags(pa.array([b"j:3:1", None, b"j:4:1"]))).tolist()
    [False, True, True]
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def highest(self, job: str) -> tuple[int, int] | None:
        """Return batch and sequence of the highest tag of a job so far."""
        place = self._highest.get(job)
        return None if place is None else (place >> _SEQUENCE_BITS, place & (2**32 - 1))

    def among(self, tags: TagColumns) -> npt.NDArray[np.bool_]:
        """Return which of the messages that come next are not repetitions."""
        first = np.ones(len(tags), bool)
        for job in pc.unique(tags.job).drop_null().to_pylist():
            rows = np.flatnonzero(tags.of(job))
            places = (tags.batch[rows] << _SEQUENCE_BITS) | tags.sequence[rows]
            before = np.concatenate(([self._highest.get(job, -1)], places))
            highest = np.maximum.accumulate(before)
            first[rows] = places > highest[:-1]
            self._highest[job] = int(highest[-1])
        return first


# Which messages of a queue are committed, and which are there a second time.
#
# On RocketMQ a job publishes a batch message by message, each with a tag, after its commit record
# stands in the commit topic.  Pure rules: tags and commit records in, what to give out.


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
        """Decide what becomes of the messages that come next.

        Messages that wait must be passed again, as they are not noted.

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
