"""The words of the commit protocol: what a job's driver and tasks say to an embedded broker.

Bytes in, values out; bodies are JSON, but for staged messages, which are ready-made records.
The rules are those of ``docs/explanation/transactions.md``: one commit record per batch, accepted
only from the current epoch and only on top of the batch before it.
"""

from __future__ import annotations

import enum
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from headrace.errors import HeadraceError, MessageTooLargeError, ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.messages import MAX_BODY, StoredMessage, decode_messages, decompress

# The rule of the commit log: which records of a commit topic count, by their order alone.
#
# RocketMQ has no compare-and-set.  Anybody may append a record; whether it counts follows from what
# stands before it, so everybody who reads the topic comes to the same answer.

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
    """Return a record's key, which names what it may replace when the topic is compacted.

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
    """Reader of a commit topic from its first record on, which decides what counts.

    It may also begin at any record that counts: each names one, see ``CommitRecord.stands_on``.

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
        """Take note of a message that is not a record, in the order of offsets."""
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


COMMIT_TOPIC_SUFFIX = "-commitTopic"
"""By the end of its name a commit topic is found again after a restart."""

QueueName = str
"""A queue in one word, ``topic@broker@queue-id``: the key of every map by queue."""

#: So many positions a commit record has as they are.
_FEW_POSITIONS = 1000
#: What may be done where there are too many.
_FEWER = (
    "nothing of the batch was committed; read fewer partitions: see that a source of files can write"
    " its ledger (ledger.uri), have files moved or deleted (when.done), or spread them over connectors"
)
#: Bytes that a commit leaves for what an open or a close adds to it.
_ROOM = 64 * 1024
#: Brokers number queues with 32 bits.
_MOST_QUEUES = 1 << 31
#: Epochs that are remembered; a local copy that is older is read from its topic again.
_LINEAGE = 64


def split_queue_name(name: QueueName) -> tuple[str, str, int] | None:
    """Return topic, broker and number of a queue; None where no queue can have the name.

    >>> split_queue_name("lines@broker-a@3")
    ('lines', 'broker-a', 3)
    >>> split_queue_name("lines@3"), split_queue_name("lines@broker-a@-1")
    (None, None)
    """
    rest, _, number = name.rpartition("@")
    topic, _, broker = rest.rpartition("@")
    if not (topic and broker and number.isascii() and number.isdecimal() and len(number) <= 10):
        return None
    return (topic, broker, int(number)) if int(number) < _MOST_QUEUES else None


class StagedPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt of one task staged: the commit makes exactly these parts visible."""

    #: Stage of the topology, 0 for the source stage.
    stage: int
    #: Input split (stage 0) or partition of the job.
    partition: int
    #: Unique number of the attempt; staged bytes of other attempts are swept.
    attempt: int
    #: Stage requests sent, and records in them, so that a lost one is noticed.
    chunks: int
    records: int
    #: What it made, where that is little and no request staged it: as the body of a STAGE request.
    sections: bytes = b""
    #: On RocketMQ: the queue of the journal, the offset of each chunk in it, and the number of
    #: messages for each target queue.  A commit record has those of all parts in its first one.
    journal: QueueName = ""
    places: list[int] = []
    counts: dict[QueueName, int] = {}


class StagedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What lies staged for a batch that is not committed, over all attempts."""

    epoch: int
    batch: int
    #: Attempts of tasks, the records that they staged, and their bytes.
    parts: int
    records: int
    size: int


class StateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Size and content check of one partition of one state store after a batch."""

    store: str
    partition: int
    #: Live keys.
    count: int
    #: Sum of the CRC-32 of each live entry's state message body, modulo 2**64.
    checksum: int
    #: Epoch, batch and attempt that changed it last: they name the change file to apply.
    epoch: int
    batch: int
    attempt: int
    #: One past the last offset of its queue of the state topic.
    end_offset: int
    #: Bytes of the state message bodies of the live entries.
    size: int = 0


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where one partition of an outside system has been read to, or one queue handed over to."""

    #: Whatever its connector says of it, as JSON; None: forgotten.
    offset: Any
    #: Generation of the task that moved it last: of two positions the later one holds.
    generation: int = 0


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues of its topics a job reads, where several jobs share them out.

    Examples
    --------
    >>> halves = [Share(number=0, of=2), Share(number=1, of=2)]
    >>> [[half.owns(f"orders@broker-a@{queue}") for half in halves] for queue in range(2)]
    [[True, False], [False, True]]
    """

    number: int = 0
    of: int = 1

    def owns(self, queue: QueueName) -> bool:
        """Return whether the job reads a queue: its number decides, shifted by its topic."""
        topic, _, number = queue.rpartition("@")
        return (int(number) + crc32(topic.encode())) % self.of == self.number


WHOLE = Share()
"""All queues: the share of a job that shares its topics with no other."""


class OperatorNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator of the topology, for those who look at a job without its program."""

    label: str
    parents: list[str] = []
    #: Of a source: the topics that it names, or a pattern that its topics match.
    topics: list[str] = []
    pattern: str = ""


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a job's commit topic: the only truth about what has been done.

    ``kind`` is ``"open"`` or ``"commit"``, on RocketMQ also ``"close"``; an open repeats the commit
    that it builds on, and a close the record before it, so the newest record alone says where the
    job stands.

    Examples
    --------
    >>> record = CommitRecord(job="j", kind="open", epoch=3, batch=5, lineage=[[1, 1]])
    >>> record = record.committed(3, timestamp=0, counters={"read": 7}).opened(4, timestamp=0)
    >>> record.kind, record.epoch, record.batch, record.lineage, record.counters
    ('open', 4, 6, [[1, 1], [3, 6]], {'read': 7})
    """

    job: str
    kind: str
    epoch: int
    #: Last committed batch (0: none yet).
    batch: int
    #: Number of partitions of the job's state.
    partitions: int = 0
    #: Next offset to read, by queue.
    offsets: dict[QueueName, int] = {}
    #: Event-time watermark in ms, by source and queue, and by clocks that operators keep.
    watermarks: dict[str, int] = {}
    #: How far event time has come for each timed operator, ms.
    progress: dict[str, int] = {}
    #: When each origin of event time last had a record, or was first missed, ms since 1970.
    seen: dict[str, int] = {}
    #: Origins of event time that were silent in the batch.
    idle: list[str] = []
    #: Wall clock of the batch, ms since 1970.
    clock: int = 0
    #: When an operator wants a batch by the wall clock, ms since 1970.
    due: int | None = None
    #: State stores after this batch; stores that the batch left alone are carried over.
    states: list[StateSummary] = []
    #: Stateful operators of the topology, so that a start that lost one is noticed.
    stores: list[str] = []
    #: What the layout of each of their stores follows from, so that a start on another is noticed.
    shapes: dict[str, dict[str, str]] = {}
    #: Every operator, parents first.
    operators: dict[str, OperatorNote] = {}
    #: [epoch, first batch] of every epoch that committed, oldest first.
    lineage: list[list[int]] = []
    #: Wall clock of the commit, ms since 1970.
    timestamp: int = 0
    #: Totals since the job's first batch, by name.
    counters: dict[str, int] = {}
    #: Where outside systems have been read to, or what was handed over to them, by partition: see
    #: ``positions`` and :func:`stored_positions`.
    stored_positions: dict[str, Position] | str = msgspec.field(
        default_factory=dict, name="positions"
    )
    #: On RocketMQ: who opened the epoch; what of the journal belongs to the batch; and where its
    #: target queues ended, at least, before it was published.
    driver: str = ""
    parts: list[StagedPart] = []
    published: dict[QueueName, int] = {}
    #: On RocketMQ: the process of a broker that has kept the driver's lock since it opened the
    #: epoch, by its address and its beginning; empty: not known.
    lock_keeper: str = ""
    #: On RocketMQ: one past the offset of the newest record that counted when its sender wrote it,
    #: so that readers may begin there; 0: not known.
    stands_on: int = 0
    #: On RocketMQ: nobody needs a record below this offset any more, and compaction takes it out.
    swept: int = 0

    def opened(
        self, epoch: int, timestamp: int, *, driver: str = "", lock_keeper: str = ""
    ) -> CommitRecord:
        """Return the record by which a driver opens an epoch on top of this one."""
        who = {"driver": driver, "lock_keeper": lock_keeper}
        return replace(self, kind="open", epoch=epoch, timestamp=timestamp, **who)

    def committed(self, epoch: int, timestamp: int, **ends: object) -> CommitRecord:
        """Return the commit of the next batch: what ``ends`` does not name is carried over."""
        batch, lineage = self.batch + 1, self.lineage
        if not lineage or lineage[-1][0] != epoch:
            # A record does not grow with every start of its job.
            lineage = [*lineage, [epoch, batch]][-_LINEAGE:]
        ends |= {"epoch": epoch, "batch": batch, "lineage": lineage, "timestamp": timestamp}
        return replace(self, kind="commit", **ends)

    def closed(self, timestamp: int, **ends: object) -> CommitRecord:
        """Return the record that ends the epoch in order."""
        return replace(self, kind="close", timestamp=timestamp, **ends)

    def repeats(self, stored: CommitRecord, looked_up: Collection[str] = ()) -> bool:
        """Return whether this is a repetition of a stored commit.

        Its sender may have looked at the clock again, and at what else ``looked_up`` names; all
        else must agree, or another plan of the same batch would take the success of the first for
        its own.
        """
        again = {name: getattr(stored, name) for name in ("timestamp", *looked_up)}
        return replace(self, **again) == stored

    def begun_anew(self, offsets: dict[QueueName, int], due: int | None = None) -> CommitRecord:
        """Return the record with other offsets, and event time that begins anew.

        What is read again would be late by the time that has come already.
        """
        return replace(self, offsets=offsets, watermarks={}, progress={}, seen={}, idle=[], due=due)

    @property
    def positions(self) -> dict[str, Position]:
        """Where outside systems have been read to, or what was handed over to them.

        Raises
        ------
        ProtocolError
            The stored form is damaged.
        """
        if not isinstance(self.stored_positions, str):
            return self.stored_positions
        try:
            packed = b64decode(self.stored_positions, validate=True)
            return msgspec.json.decode(decompress(packed, SysFlag.ZSTD), type=dict[str, Position])
        except (ProtocolError, ValueError, msgspec.MsgspecError) as error:
            raise ProtocolError(
                f"the positions of job '{self.job}' are damaged: {error}"
            ) from error


def stored_positions(positions: dict[str, Position]) -> dict[str, Position] | str:
    """Return positions in the form in which a commit record has them.

    Many are packed into one text: names of files are much alike, and brokers bound the size of a
    record and the items of a request.

    Examples
    --------
    >>> many = {f"file-{number:05}": Position(offset=number) for number in range(5_000)}
    >>> packed = stored_positions(many)
    >>> record = CommitRecord(job="j", kind="commit", epoch=1, batch=1, stored_positions=packed)
    >>> len(packed) < 40_000, record.positions == many
    (True, True)

    Raises
    ------
    MessageTooLargeError
        Nobody would unpack them again.
    """
    if len(positions) <= _FEW_POSITIONS:
        return positions
    text = msgspec.json.encode(positions)
    if len(text) > MAX_BODY:
        raise MessageTooLargeError(
            f"{len(positions):,} partitions of an outside system have positions of {len(text):,}"
            f" bytes, and a commit record has room for {MAX_BODY:,} before they are packed",
            hint=_FEWER,
        )
    packed: bytes = pa.compress(text, codec="zstd", asbytes=True)
    return b64encode(packed).decode()


def check_commit(record: CommitRecord, size: int, limit: int) -> None:
    """Refuse a commit that would be too large: for its topic, or for the open that repeats it.

    Parameters
    ----------
    size
        Bytes of what is sent.
    limit
        Most bytes that the broker takes.

    Raises
    ------
    MessageTooLargeError
        It is too large.
    """
    most = limit - _ROOM
    if size > most:
        raise MessageTooLargeError(
            f"the commit of batch {record.batch} of job '{record.job}' has {size:,} bytes, and"
            f" {most:,} are possible: {len(record.positions):,} partitions of an outside system,"
            f" {len(record.states):,} of state",
            hint=_FEWER,
        )


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Begin a new epoch of a job (request OPEN_JOB)."""

    job: str
    commit_topic: str
    #: Names the driver in errors and listings, e.g. ``host:pid``.
    driver: str
    #: Its epoch before, which it goes back from; 0 at its start.  Nobody else may have opened one
    #: since.
    after: int = 0
    #: The account that the job belongs to from here on; only an admin may give it away.
    owner: str = ""


class OpenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The new epoch and the commit that it builds on."""

    epoch: int
    #: The open record as stored: its batch, offsets and states are those of the last commit.
    record: CommitRecord


def commit_in(message: StoredMessage) -> CommitRecord | None:
    """Read the record in a message of a commit topic; None where it deletes older ones."""
    return msgspec.json.decode(message.body, type=CommitRecord) if message.body else None


def stored_commit(record: bytes | memoryview) -> tuple[CommitRecord, StoredMessage] | None:
    """Read the commit that a stored record of a commit topic holds; None when it holds none."""
    try:
        message, *more = decode_messages(record)
        return None if more else (msgspec.json.decode(message.body, type=CommitRecord), message)
    except (msgspec.DecodeError, HeadraceError, ValueError):
        return None


class CommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Commit one batch (request COMMIT_BATCH)."""

    commit_topic: str
    #: Consumer group whose offsets follow the job's.
    group: str
    #: The batch before it, as the driver knows it: compare-and-set.
    previous: int
    parts: list[StagedPart]
    record: CommitRecord


class CommitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """``already`` tells a repeated request from the first: the batch is committed either way."""

    batch: int
    already: bool
    #: Followers that have the commit log up to here have the unit: its end, and after a restart
    #: of the broker the end of what was there.
    position: int


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask where a job stands and how far its next batch may read (request PLAN_BATCH)."""

    job: str
    commit_topic: str
    topics: list[str]
    #: Next offset to read, by queue; queues not named start at their first offset.
    offsets: dict[QueueName, int] = {}
    #: At most so many messages in all (0: no limit).
    limit: int = 0
    #: At most so many bytes of messages in all, but at least one message (0: no limit).
    max_bytes: int = 0
    #: Wait so long for a message when there is none, ms.
    wait: int = 0
    #: Leave out the queues of other jobs.
    share: Share = WHOLE
    #: Most bytes of messages that the answer brings along.
    messages: int = 0


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One cut through all queues at a single position of the commit log."""

    #: Newest record of the commit topic, None before the first open.
    record: CommitRecord | None
    #: First and one-past-last offset of every queue of the topics, in the cut.
    begins: dict[QueueName, int]
    ends: dict[QueueName, int]
    #: One past the last message of every queue, without the limit: what lag is measured by.
    latest: dict[QueueName, int]
    #: Commit-log position of the cut.
    position: int
    #: The broker's clock, ms since 1970.
    clock: int
    #: All messages of some queues from where the job reads on to their ends, as a pull has them.
    messages: dict[QueueName, bytes] = {}


class StagedSection(msgspec.Struct, frozen=True):
    """Ready-made records of one queue, end to end, without offsets, positions and store time."""

    topic: str
    queue_id: int
    count: int
    records: bytes | memoryview


_SECTION = struct.Struct(">HiiI")


def encode_sections(sections: Iterable[StagedSection]) -> bytes:
    """Join sections into the body of a STAGE request.

    Each is: topic length u16, queue id i32, count i32, byte length u32, topic, records.
    """
    pieces: list[bytes | memoryview] = []
    for section in sections:
        topic = section.topic.encode()
        size = len(section.records)
        pieces += (
            _SECTION.pack(len(topic), section.queue_id, section.count, size),
            topic,
            section.records,
        )
    return b"".join(pieces)


def decode_sections(body: bytes | memoryview) -> Iterator[StagedSection]:
    """Split the body of a STAGE request; the records are views into it.

    Raises
    ------
    ProtocolError
        The body does not end where a section does, or a topic is not UTF-8.

    Examples
    --------
    >>> body = encode_sections([StagedSection("t", 3, 1, b"xyz")])
    >>> [(s.topic, s.queue_id, s.count, bytes(s.records)) for s in decode_sections(body)]
    [('t', 3, 1, b'xyz')]
    """
    view = memoryview(body)
    at = 0
    while at < len(view):
        start = at
        if at + _SECTION.size > len(view):
            raise _broken_section(start, len(view))
        topic_size, queue_id, count, size = _SECTION.unpack_from(view, at)
        at += _SECTION.size
        records_at = at + topic_size
        try:
            topic = str(view[at:records_at], "utf-8")
        except UnicodeDecodeError as error:
            raise _broken_section(start, len(view)) from error
        at = records_at + size
        if at > len(view):
            raise _broken_section(start, len(view))
        yield StagedSection(topic, queue_id, count, view[records_at:at])


def _broken_section(at: int, size: int) -> ProtocolError:
    return ProtocolError(f"the section at byte {at} of a STAGE body of {size} bytes is not whole")
